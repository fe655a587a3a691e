use super::*;
use proptest::prelude::*;

const COMMON: &str = "\
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;
";

fn event_name() -> EventName {
    EventName::parse("group:event").unwrap()
}

impl EventSchema {
    /// That of the event `id` with these field lines behind the common ones.
    pub(crate) fn of_fields(id: u16, fields: &str, print_fmt: &str) -> Self {
        let text = format!("name: event\nID: {id}\nformat:\n{COMMON}\n{fields}\nprint fmt: {print_fmt}\n");
        Self::parse(&event_name(), &text).unwrap()
    }
}

/// Schema of event 77 with these field lines behind the common ones.
fn schema_of(fields: &str, print_fmt: &str) -> EventSchema {
    EventSchema::of_fields(77, fields, print_fmt)
}

/// A record whose common fields are type 77 and pid 42.
fn record(own: &[u8]) -> Vec<u8> {
    let mut record = vec![77, 0, 0, 0, 42, 0, 0, 0];
    record.extend(own);
    record
}

fn encode(schema: &EventSchema, own: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    schema.encode(&record(own), &mut out).unwrap();
    assert!(schema.description.accepts(&out));
    assert_eq!(out[..4], 42_i32.to_le_bytes());
    out.split_off(4)
}

/// Name, type and base of the fields behind `common_pid`.
fn fields(schema: &EventSchema) -> Vec<(&str, FieldType, bool)> {
    let fields = schema.description.fields.iter().skip(1);
    fields.map(|field| (field.name.as_str(), field.ty, field.hex)).collect()
}

#[test]
fn number_and_the_process_come_from_the_common_fields() {
    let schema = schema_of("", "\"\"");

    let pid = FieldDescription { name: "common_pid".to_owned(), ty: FieldType::I32, hex: false };
    assert_eq!(schema.id(), 77);
    assert_eq!(schema.name, event_name());
    assert_eq!(
        schema.description,
        EventDescription { id: 77, class: class::HOST_KERNEL, name: "group:event".to_owned(), fields: vec![pid] }
    );
}

#[test]
fn integers_take_size_and_sign_from_the_file_rather_than_the_type() {
    let schema = schema_of(
        "\tfield:u8 a;\toffset:8;\tsize:1;\tsigned:0;\n\
         \tfield:short b;\toffset:10;\tsize:2;\tsigned:1;\n\
         \tfield:pid_t c;\toffset:12;\tsize:4;\tsigned:1;\n\
         \tfield:int d;\toffset:16;\tsize:8;\tsigned:0;\n",
        "\"\"",
    );

    let packed = encode(&schema, &[1, 0xee, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);

    assert_eq!(
        fields(&schema),
        [
            ("a", FieldType::U8, false),
            ("b", FieldType::I16, false),
            ("c", FieldType::I32, false),
            ("d", FieldType::U64, false),
        ]
    );
    assert_eq!(packed, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
}

#[test]
fn pointers_and_fields_printed_in_base_16_are_unsigned_hex() {
    let schema = schema_of(
        "\tfield:void * p;\toffset:8;\tsize:8;\tsigned:0;\n\
         \tfield:long x;\toffset:16;\tsize:8;\tsigned:1;\n\
         \tfield:long d;\toffset:24;\tsize:8;\tsigned:1;\n",
        "\"%p %lx %ld\", REC->p, REC->x, REC->d",
    );

    assert_eq!(
        fields(&schema),
        [("p", FieldType::U64, true), ("x", FieldType::U64, true), ("d", FieldType::I64, false),]
    );
}

#[test]
fn char_array_keeps_its_length_and_loses_what_follows_the_nul() {
    let schema = schema_of("\tfield:char comm[8];\toffset:8;\tsize:8;\tsigned:0;\n", "\"\"");

    assert_eq!(fields(&schema), [("comm", FieldType::CharArray(8), false)]);
    assert_eq!(encode(&schema, b"sh\0junk!"), b"sh\0\0\0\0\0\0");
    assert_eq!(encode(&schema, b"12345678"), b"12345678");
}

#[test]
fn dynamic_string_is_cut_at_its_first_nul_and_ended_by_one() {
    let schema = schema_of(
        "\tfield:__data_loc char[] name;\toffset:8;\tsize:4;\tsigned:0;\n\
         \tfield:u32 after;\toffset:12;\tsize:4;\tsigned:0;\n",
        "\"\"",
    );
    let locator = 16_u32 | (6 << 16);
    let mut own = locator.to_le_bytes().to_vec();
    own.extend(7_u32.to_le_bytes());
    own.extend(b"ab\0cd\0");

    assert_eq!(fields(&schema), [("name", FieldType::String, false), ("after", FieldType::U32, false)]);
    assert_eq!(encode(&schema, &own), b"ab\0\x07\0\0\0");
}

#[test]
fn relative_locator_counts_from_its_own_end() {
    let schema = schema_of("\tfield:__rel_loc char[] name;\toffset:8;\tsize:4;\tsigned:0;\n", "\"\"");
    let mut own = (4_u32 | (3 << 16)).to_le_bytes().to_vec();
    own.extend(b"....hi\0");

    assert_eq!(encode(&schema, &own), b"hi\0");
}

#[test]
fn arrays_of_bytes_become_hexadecimal_text() {
    let schema = schema_of(
        "\tfield:__u8 insn[3];\toffset:8;\tsize:3;\tsigned:0;\n\
         \tfield:__data_loc u8[] raw;\toffset:12;\tsize:4;\tsigned:0;\n",
        "\"\"",
    );
    let mut own = vec![0x0f, 0xa2, 0x00, 0xff];
    own.extend((16_u32 | (2 << 16)).to_le_bytes());
    own.extend([0xde, 0xad]);

    assert_eq!(fields(&schema), [("insn", FieldType::String, false), ("raw", FieldType::String, false)]);
    assert_eq!(encode(&schema, &own), b"0fa200\0dead\0");
}

#[test]
fn short_array_of_integers_becomes_a_field_per_element() {
    let schema = schema_of("\tfield:unsigned long args[2];\toffset:8;\tsize:16;\tsigned:0;\n", "\"\"");

    assert_eq!(fields(&schema), [("args_0", FieldType::U64, false), ("args_1", FieldType::U64, false)]);
    assert_eq!(encode(&schema, &[3; 16]), [3; 16]);
}

#[test]
fn array_of_anything_else_is_the_text_of_its_bytes() {
    let schema = schema_of(
        "\tfield:__data_loc cpumask_t mask;\toffset:8;\tsize:4;\tsigned:0;\n\
         \tfield:u32 table[17];\toffset:12;\tsize:68;\tsigned:0;\n\
         \tfield:struct pair pairs[2];\toffset:80;\tsize:6;\tsigned:0;\n",
        "\"\"",
    );
    let mut own = (86_u32 | (2 << 16)).to_le_bytes().to_vec();
    own.extend([0x11; 68]);
    own.extend([0x22; 6]);
    own.extend([3, 0]);

    assert_eq!(encode(&schema, &own), [b"0300\0", &[b'1'; 136][..], b"\0", &[b'2'; 12], b"\0"].concat());
}

#[test]
fn what_cannot_be_recorded_is_listed() {
    let schema = schema_of(
        "\tfield:unsigned long caller[];\toffset:8;\tsize:0;\tsigned:0;\n\
         \tfield:u32 table[65];\toffset:8;\tsize:260;\tsigned:0;\n",
        "\"\"",
    );

    let skipped: Vec<&str> = schema.skipped.iter().map(|field| field.name.as_str()).collect();

    assert_eq!(skipped, ["caller", "table"]);
    assert_eq!(schema.skipped[1].declaration, "u32 table[65]");
    assert_eq!(schema.description.fields.len(), 1);
}

#[test]
fn field_whose_name_is_taken_or_none_is_skipped() {
    let schema = schema_of(
        "\tfield:u8 a;\toffset:8;\tsize:1;\tsigned:0;\n\
         \tfield:u8 a;\toffset:9;\tsize:1;\tsigned:0;\n\
         \tfield:u8 common_pid;\toffset:10;\tsize:1;\tsigned:0;\n",
        "\"\"",
    );

    assert_eq!(fields(&schema), [("a", FieldType::U8, false)]);
    assert_eq!(schema.skipped.len(), 2);
}

#[test]
fn fields_beyond_what_a_description_holds_are_skipped() {
    let lines: String = (0..70).map(|n| format!("\tfield:u8 f{n};\toffset:{};\tsize:1;\tsigned:0;\n", 8 + n)).collect();

    let schema = schema_of(&lines, "\"\"");

    assert_eq!(schema.description.fields.len(), MAX_FIELDS);
    assert_eq!(schema.skipped.len(), 71 - MAX_FIELDS);
}

#[test]
fn record_too_long_for_our_own_is_refused() {
    let schema = schema_of("\tfield:char buf[];\toffset:8;\tsize:0;\tsigned:0;\n", "\"\"");
    let mut out = Vec::new();

    let error = schema.encode(&record(&[b'x'; 65531]), &mut out).unwrap_err();

    assert_eq!(error, RecordError::TooLong { event_id: 77, length: 65536 });
    assert_eq!(out, b"");
}

#[test]
fn text_up_to_the_end_of_the_record_is_a_string() {
    let schema = schema_of("\tfield:char buf[];\toffset:8;\tsize:0;\tsigned:0;\n", "\"%s\", REC->buf");

    assert_eq!(encode(&schema, b"hello\0\0\0"), b"hello\0");
}

#[test]
fn record_that_is_too_short_leaves_the_output_as_it_was() {
    let schema = schema_of("\tfield:u64 a;\toffset:8;\tsize:8;\tsigned:0;\n", "\"\"");
    let mut out = b"before".to_vec();

    let error = schema.encode(&record(&[1, 2, 3]), &mut out).unwrap_err();

    assert_eq!(error, RecordError::TooShort { event_id: 77, field: 1, length: 11 });
    assert_eq!(out, b"before");
}

#[test]
fn locator_that_points_outside_of_the_record_is_refused() {
    let schema = schema_of("\tfield:__data_loc char[] name;\toffset:8;\tsize:4;\tsigned:0;\n", "\"\"");

    let error = schema.encode(&record(&(0xffff_u32 | (2 << 16)).to_le_bytes()), &mut Vec::new()).unwrap_err();

    assert_eq!(error, RecordError::TooShort { event_id: 77, field: 1, length: 12 });
}

#[test]
fn files_without_number_or_common_fields_are_refused() {
    let no_number = EventSchema::parse(&event_name(), "name: event\nformat:\n").unwrap_err();
    let large =
        EventSchema::parse(&event_name(), &format!("name: event\nID: 65535\nformat:\n{COMMON}\n\n")).unwrap_err();
    let no_pid = EventSchema::parse(
        &event_name(),
        "name: event\nID: 5\nformat:\n\tfield:u16 common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\n",
    )
    .unwrap_err();
    let located = COMMON.replace("int common_pid", "__data_loc char[] common_pid");
    let located_pid =
        EventSchema::parse(&event_name(), &format!("name: event\nID: 5\nformat:\n{located}\n\n")).unwrap_err();

    assert!(matches!(no_number, SchemaError::NoNumber { .. }));
    assert!(matches!(large, SchemaError::NumberOutOfRange { number: 65535, .. }));
    assert!(matches!(no_pid, SchemaError::CommonField { field: "common_pid", .. }));
    assert!(matches!(located_pid, SchemaError::CommonField { field: "common_pid", .. }));
}

#[test]
fn names_that_are_no_file_names_are_refused() {
    assert_eq!(EventName::parse("kvm:kvm_exit").unwrap().to_string(), "kvm:kvm_exit");
    assert_eq!(EventName::parse("kvm"), None);
    assert_eq!(EventName::parse(":exit"), None);
    assert_eq!(EventName::parse("kvm:"), None);
    assert_eq!(EventName::parse("..:x"), None);
    assert_eq!(EventName::parse("a:b/c"), None);
}

/// A format file with a field of every kind.
const FORMAT: &str = "name: event
ID: 77
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:unsigned long args[6];\toffset:8;\tsize:48;\tsigned:0;
\tfield:struct timer_list * timer;\toffset:56;\tsize:8;\tsigned:0;
\tfield:char comm[16];\toffset:64;\tsize:16;\tsigned:0;
\tfield:u16 ports[4];\toffset:80;\tsize:8;\tsigned:0;
\tfield:__data_loc char[] name;\toffset:88;\tsize:4;\tsigned:0;
\tfield:__rel_loc u8[] data;\toffset:92;\tsize:4;\tsigned:0;

print fmt: \"%lx %s\", REC->args[0], __get_str(name)
";

#[test]
fn format_files_of_every_event_of_this_kernel_are_understood() {
    // None where there is no tracefs.
    let entries = |path: std::path::PathBuf| std::fs::read_dir(path).into_iter().flatten().flatten();
    let groups = entries("/sys/kernel/tracing/events".into());
    let files = groups.flat_map(|group| entries(group.path())).map(|event| event.path().join("format"));
    let texts = files.filter_map(|file| Some((file.display().to_string(), std::fs::read_to_string(file).ok()?)));

    let refused: Vec<_> = texts.filter_map(|(file, text)| Some((file, FormatFile::parse(&text).err()?))).collect();

    assert!(refused.is_empty(), "{refused:?}");
}

proptest! {
    #[test]
    fn any_format_file_is_understood_or_refused(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 0..3_usize, any::<u8>()), 0..6),
    ) {
        let mut text = FORMAT.as_bytes().to_vec();
        for (at, kind, byte) in changes {
            let at = at.index(text.len());
            match kind {
                0 => text[at] = byte,
                1 => text.insert(at, byte % 128),
                _ => drop(text.remove(at)),
            }
        }

        let parsed = EventSchema::parse(&event_name(), &String::from_utf8_lossy(&text));

        prop_assert!(parsed.is_err() || !parsed.unwrap().description.fields.is_empty());
    }

    #[test]
    fn copied_at_once_fields_are_those_copied_one_by_one(bytes in proptest::collection::vec(0..4_u8, 0..100)) {
        let schema = schema_of(
            "\tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
             \tfield:int prev_pid;\toffset:24;\tsize:4;\tsigned:1;\n\
             \tfield:long prev_state;\toffset:32;\tsize:8;\tsigned:1;\n\
             \tfield:char short[5];\toffset:40;\tsize:5;\tsigned:0;\n\
             \tfield:u64 args[3];\toffset:48;\tsize:24;\tsigned:0;\n",
            "\"\"",
        );
        let in_one_run = schema_of("\tfield:u64 args[3];\toffset:8;\tsize:24;\tsigned:0;\n", "\"\"");
        for schema in [schema, in_one_run] {
            let (mut at_once, mut one_by_one, mut buffer) = (vec![9], vec![9], vec![9]);

            let results = (schema.encode(&bytes, &mut at_once), schema.encode_each(&bytes, &mut one_by_one));
            let encoded = schema.encoded(&bytes, &mut buffer).map(<[u8]>::to_vec);

            prop_assert!(schema.plan.is_some());
            prop_assert_eq!(results.0, results.1);
            prop_assert_eq!(encoded, results.1.map(|()| one_by_one[1..].to_vec()));
            prop_assert_eq!(at_once, one_by_one);
        }
    }

    #[test]
    fn any_record_is_encoded_or_refused_within_bounds(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let schema = schema_of(
            "\tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
             \tfield:__data_loc char[] name;\toffset:24;\tsize:4;\tsigned:0;\n\
             \tfield:__rel_loc u8[] raw;\toffset:28;\tsize:4;\tsigned:0;\n\
             \tfield:char rest[];\toffset:32;\tsize:0;\tsigned:0;\n",
            "\"\"",
        );
        let mut out = Vec::new();

        let result = schema.encode(&bytes, &mut out);

        prop_assert!(result.is_err() && out.is_empty() || schema.description.accepts(&out));
        prop_assert!(out.len() <= 4 * bytes.len() + 8);
    }
}

#[test]
fn declaration_that_is_not_ascii_is_not_cut_within_a_character() {
    let schema = schema_of(
        "\tfield:__rel_loc u\u{fffd}[] data;\toffset:8;\tsize:4;\tsigned:0;\n\
         \tfield:u8 größe;\toffset:12;\tsize:1;\tsigned:0;\n\
         \tfield:u8 last;\toffset:13;\tsize:1;\tsigned:0;\n",
        "\"µs\"",
    );

    assert_eq!(
        fields(&schema),
        [("data", FieldType::String, false), ("gr__e", FieldType::U8, false), ("last", FieldType::U8, false)]
    );
}

/// `sunrpc:svc_defer_drop` and `tcp:tcp_probe` of Linux 5.10, behind the common fields.
const SVC_DEFER_DROP: &str = "\
\tfield:const void * dr;\toffset:8;\tsize:8;\tsigned:0;
\tfield:u32 xid;\toffset:16;\tsize:4;\tsigned:0;
\tfield:__u8 addr[(48) + 10];\toffset:20;\tsize:58;\tsigned:0;
";
const TCP_PROBE: &str = "\
\tfield:__u8 saddr[sizeof(struct sockaddr_in6)];\toffset:8;\tsize:28;\tsigned:0;
\tfield:__u8 daddr[sizeof(struct sockaddr_in6)];\toffset:36;\tsize:28;\tsigned:0;
\tfield:__u16 sport;\toffset:64;\tsize:2;\tsigned:0;
";

#[test]
fn array_whose_length_is_an_expression_is_as_long_as_its_size_says() {
    let (dropped, probed) = (schema_of(SVC_DEFER_DROP, "\"\""), schema_of(TCP_PROBE, "\"\""));
    let own: Vec<u8> = (0..58).collect();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\0";

    assert_eq!(
        fields(&dropped),
        [("dr", FieldType::U64, true), ("xid", FieldType::U32, false), ("addr", FieldType::String, false)]
    );
    assert_eq!(
        fields(&probed),
        [("saddr", FieldType::String, false), ("daddr", FieldType::String, false), ("sport", FieldType::U16, false)]
    );
    let expected = [hex(&own[..28]).as_bytes(), hex(&own[28..56]).as_bytes(), &own[56..58]].concat();
    assert_eq!(encode(&probed, &own), expected);
    assert!(dropped.skipped.is_empty() && probed.skipped.is_empty());
}

#[test]
fn array_of_integers_of_unknown_number_has_as_many_as_its_size_holds() {
    let schema = schema_of("\tfield:unsigned int fc[EXT4_FC_REASON_MAX];\toffset:8;\tsize:8;\tsigned:0;\n", "\"\"");
    let of_arrays = schema_of("\tfield:u16 pairs[2][N];\toffset:8;\tsize:8;\tsigned:0;\n", "\"\"");

    assert_eq!(fields(&schema), [("fc_0", FieldType::U32, false), ("fc_1", FieldType::U32, false)]);
    assert_eq!(fields(&of_arrays).len(), 4);
    assert_eq!(encode(&of_arrays, &[1, 0, 2, 0, 3, 0, 4, 0]), [1, 0, 2, 0, 3, 0, 4, 0]);
}

#[test]
fn field_that_cannot_be_recorded_leaves_the_others_and_is_listed_as_the_kernel_declares_it() {
    let schema = schema_of(
        "\tfield:char names[4][16];\toffset:8;\tsize:64;\tsigned:0;\n\
         \tfield:struct kind kind;\toffset:72;\tsize:12;\tsigned:0;\n\
         \tfield:u8 table[70000];\toffset:80;\tsize:70000;\tsigned:0;\n\
         \tfield:u8 half[40000];\toffset:80;\tsize:40000;\tsigned:0;\n\
         \tfield:u32 last;\toffset:8;\tsize:4;\tsigned:0;\n",
        "\"\"",
    );

    let mut skipped: Vec<_> = schema.skipped.iter().map(|field| (&*field.name, &*field.declaration)).collect();
    skipped.sort_unstable();
    assert_eq!(
        skipped,
        [
            ("half", "u8 half[40000]"),
            ("kind", "struct kind kind"),
            ("names", "char names[4][16]"),
            ("table", "u8 table[70000]"),
        ]
    );
    assert_eq!(fields(&schema), [("last", FieldType::U32, false)]);
}

#[test]
fn field_that_is_called_as_a_type_is_recorded_under_its_name() {
    let schema = schema_of(
        "\tfield:u16 short;\toffset:8;\tsize:2;\tsigned:0;\n\
         \tfield:u8 signed;\toffset:10;\tsize:1;\tsigned:0;\n\
         \tfield:u8 char[3];\toffset:11;\tsize:3;\tsigned:0;\n\
         \tfield:char unsigned[4];\toffset:14;\tsize:4;\tsigned:0;\n",
        "\"%x\", REC->short",
    );

    assert_eq!(
        fields(&schema),
        [
            ("short", FieldType::U16, true),
            ("signed", FieldType::U8, false),
            ("char", FieldType::String, false),
            ("unsigned", FieldType::CharArray(4), false),
        ]
    );
    assert_eq!(encode(&schema, b"\x01\x02\x03\x0a\x0b\x0cab\0\xff"), b"\x01\x02\x030a0b0c\0ab\0\0");
}

#[test]
fn description_that_cannot_be_used_is_named_with_its_line() {
    let text = format!("name: event\nID: 77\nformat:\n{COMMON}\n\tfield:u8 a[3;\toffset:8;\tsize:3;\tsigned:0;\n");

    let error = crate::TracefsError::Schema(EventSchema::parse(&event_name(), &text).unwrap_err());

    let shown = error.to_string();
    assert!(shown.contains("`group:event`") && shown.contains("u8 a[3;"), "{shown}");
}
