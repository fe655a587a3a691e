//! What is built for a run: programs, the guest kernel module, guest images.

pub mod binaries;
pub mod debian_root;
pub mod debug_kernel;
pub mod guest_image;
pub mod initramfs;
pub mod kmod;
pub mod lttng_modules;
pub mod object_gates;
pub mod qemu_files;
pub mod shared_objects;
pub mod test_module;
