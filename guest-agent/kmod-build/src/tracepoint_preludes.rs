//! What trace headers need before they compile outside the kernel's own sources: public headers that their users
//! include, private structures, and small pieces of the private headers themselves.

/// What a unit puts in front of its trace header.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prelude {
    /// Headers to include, where the kernel's packages have them.
    pub includes: &'static [&'static str],
    /// Types of the private headers, as C.
    pub types: &'static str,
    /// Values of enumerations to take from the kernel's BTF.
    pub constants: &'static [&'static str],
    /// Structures to take from the kernel's BTF, those first that others hold.
    pub structures: &'static [&'static str],
    /// What comes after the structures.
    pub functions: &'static str,
    /// A header of the module's own, whose definitions of the same events are recorded instead: tracepoints and the arguments
    /// that they pass stay those of the trace header.
    pub events: Option<&'static str>,
}

const NOTHING: Prelude =
    Prelude { includes: &[], types: "", constants: &[], structures: &[], functions: "", events: None };

/// The prelude of the trace header called `name` (its file's name without the ending).
#[must_use]
pub fn prelude(name: &str) -> Prelude {
    match name {
        "avc" => Prelude { structures: &["selinux_audit_data"], ..NOTHING },
        "bridge" => Prelude {
            includes: &["linux/if_bridge.h", "linux/netdevice.h", "net/ipv6.h"],
            // net/bridge/br_private.h
            types: "typedef struct mac_addr { unsigned char addr[6]; } mac_addr;\ntypedef __u16 port_id;\n\
                    typedef struct bridge_id { unsigned char prio[2]; unsigned char addr[6]; } bridge_id;\n",
            structures: &["net_bridge_fdb_key", "net_bridge_fdb_entry", "net_bridge_port", "net_bridge"],
            ..NOTHING
        },
        "compaction" => Prelude { structures: &["compact_control"], ..NOTHING },
        "dma_fence" => Prelude { includes: &["linux/dma-fence.h"], ..NOTHING },
        "ext4" => Prelude {
            includes: &["linux/jbd2.h", "linux/quotaops.h", "linux/fscrypt.h", "linux/pagemap.h", "linux/iomap.h"],
            types: EXT4_TYPES,
            constants: &["EXT4_FC_REASON_MAX"],
            structures: &[
                "ext4_inode_info",
                "ext4_free_extent",
                "ext4_allocation_context",
                "ext4_prealloc_space",
                "ext4_map_blocks",
                "mpage_da_data",
                "ext4_extent",
                "extent_status",
                "ext4_fsmap",
                "ext4_allocation_request",
                "partial_cluster",
                "ext4_fc_stats",
                "ext4_sb_info",
            ],
            functions: EXT4_FUNCTIONS,
            ..NOTHING
        },
        "filelock" => Prelude { includes: &["linux/filelock.h"], ..NOTHING },
        "handshake" => Prelude {
            structures: &["handshake_req"],
            includes: &["linux/in6.h", "net/sock.h", "net/tls.h", "net/tls_prot.h"],
            ..NOTHING
        },
        "timer_migration" => Prelude {
            includes: &["linux/timerqueue.h"],
            // kernel/time/timer_migration.h
            types: "union tmigr_state { u32 state; struct { u8 active; u8 migrator; u16 seq; } __packed; };\n",
            structures: &["tmigr_event", "tmigr_group", "tmigr_cpu"],
            ..NOTHING
        },
        "udp" => Prelude { includes: &["linux/ip.h", "linux/ipv6.h", "linux/udp.h"], ..NOTHING },
        "fib6" => Prelude { includes: &["net/ip6_fib.h", "net/ip6_route.h"], ..NOTHING },
        // asm/tlbflush.h keeps it from modules
        "hyperv" => Prelude { structures: &["flush_tlb_info"], ..NOTHING },
        "icmp" => Prelude { includes: &["linux/ip.h", "linux/udp.h", "linux/icmp.h", "net/sock.h"], ..NOTHING },
        "iocost" => Prelude {
            includes: &["linux/blkdev.h", "linux/blk-cgroup.h"],
            structures: &["ioc_now", "ioc_gq", "ioc_margins", "ioc"],
            ..NOTHING
        },
        "irq_matrix" => Prelude { structures: &["cpumap", "irq_matrix"], ..NOTHING },
        "kmem" => Prelude {
            includes: &["linux/slab.h", "linux/reciprocal_div.h", "linux/memcontrol.h"],
            structures: &["kmem_cache_order_objects", "kmem_cache"],
            ..NOTHING
        },
        "kvm" => Prelude { includes: &["linux/kvm_host.h"], ..NOTHING },
        "mptcp" => Prelude { includes: &["net/mptcp.h", "net/tcp.h"], ..NOTHING },
        "neigh" => Prelude { includes: &["net/neighbour.h", "net/ipv6.h"], ..NOTHING },
        "pagemap" | "vmscan" => {
            Prelude { includes: &["linux/mm_inline.h", "linux/pagemap.h", "linux/memcontrol.h"], ..NOTHING }
        }
        "swiotlb" => Prelude { includes: &["linux/swiotlb.h"], ..NOTHING },
        "syscalls" => Prelude { includes: &["asm/syscall.h"], events: Some("strata_syscall_events.h"), ..NOTHING },
        "thermal" | "thermal_power_allocator" => Prelude { includes: &["linux/thermal.h"], ..NOTHING },
        "wbt" => Prelude { includes: &["linux/blkdev.h", "linux/backing-dev.h"], ..NOTHING },
        "workqueue" => Prelude {
            includes: &["linux/workqueue.h"],
            structures: &["worker_pool", "pool_workqueue", "workqueue_struct"],
            ..NOTHING
        },
        "writeback" => Prelude {
            includes: &["linux/pagemap.h", "linux/backing-dev.h", "linux/memcontrol.h", "linux/writeback.h"],
            structures: &["wb_writeback_work"],
            ..NOTHING
        },
        "xen" => {
            Prelude { includes: &["asm/xen/hypervisor.h", "xen/interface/xen.h", "asm/xen/trace_types.h"], ..NOTHING }
        }
        _ => NOTHING,
    }
}

/// Functions whose values trace headers record and which the kernel does not export: the symbol, and how headers call
/// it. Where that symbol is missing, fields that are computed by such a call are left out.
pub const UNEXPORTED: [(&str, &str); 9] = [
    ("__sock_gen_cookie", "sock_gen_cookie"),
    ("global_wb_domain", "global_wb_domain"),
    ("get_pfnblock_flags_mask", "get_pageblock_migratetype"),
    ("io_uring_get_opcode", "io_uring_get_opcode"),
    ("ioc_name", "ioc_name"),
    ("ip6_rt_type_to_error", "ip6_rt_type_to_error"),
    ("netdev_drivername", "netdev_drivername"),
    ("ptr_to_hashval", "mm_ptr_to_hash"),
    ("task_numa_group_id", "task_numa_group_id"),
];

/// fs/ext4/ext4.h
const EXT4_TYPES: &str = "\
typedef unsigned long long ext4_fsblk_t;
typedef __u32 ext4_lblk_t;
typedef unsigned int ext4_group_t;
typedef int ext4_grpblk_t;
struct ext4_locality_group;
";

/// fs/ext4/ext4_extents.h, fs/ext4/extents_status.h
const EXT4_FUNCTIONS: &str = "\
static inline struct ext4_sb_info *EXT4_SB(struct super_block *sb)
{
	return sb->s_fs_info;
}
static inline ext4_fsblk_t ext4_ext_pblock(struct ext4_extent *ex)
{
	return le32_to_cpu(ex->ee_start_lo) | (ext4_fsblk_t)le16_to_cpu(ex->ee_start_hi) << 32;
}
static inline int ext4_ext_get_actual_len(struct ext4_extent *ext)
{
	return le16_to_cpu(ext->ee_len) <= 1U << 15 ? le16_to_cpu(ext->ee_len) : le16_to_cpu(ext->ee_len) - (1U << 15);
}
/* The upper bits of a block number hold the state of the extent. */
#define ES_SHIFT 60
static inline unsigned int ext4_es_status(struct extent_status *es)
{
	return es->es_pblk >> ES_SHIFT;
}
static inline ext4_fsblk_t ext4_es_pblock(struct extent_status *es)
{
	return es->es_pblk & ((1ULL << ES_SHIFT) - 1);
}
static inline ext4_fsblk_t ext4_es_show_pblock(struct extent_status *es)
{
	return ext4_es_pblock(es) == (1ULL << ES_SHIFT) - 1 ? 0 : ext4_es_pblock(es);
}
";
