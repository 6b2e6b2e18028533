//! Tests of encoding and decoding: tables round-trip, and any contradicting cell or footer field is rejected.

use std::sync::Arc;

use bytes::Bytes;
use mcpproxy_activity::codec::{HeadRef, PayloadRef};
use mcpproxy_activity::record::{Operation, Source, Status, Type};
use parquet::column::reader::ColumnReader;
use parquet::data_type::{ByteArray, FixedLenByteArray};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use proptest::prelude::*;

use crate::parquet_table::reading::{Unpacking, read_pages};
use crate::parquet_table::*;
use crate::parquet_table::{
    COLUMNS, Cells, RecordCollector, RecordRows, TableColumn, TableOf, properties, schema,
    write_cells,
};
use crate::segment::examples::ExampleLog;

/// Decodes a table, ignoring its notes.
fn read(bytes: &Bytes) -> Result<TableRead, TableError> {
    decode(bytes, &footer(bytes)?)
}

/// Encodes a table whose cells are changed by `alter`.
fn altered(records: &RecordRows, alter: impl Fn(&TableColumn, Cells) -> Cells) -> Bytes {
    let node = Bytes::from_static(b"a");
    let table = TableOf::new(records, &node).unwrap();
    let mut writer =
        SerializedFileWriter::new(Vec::new(), schema().unwrap(), properties()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for column in COLUMNS {
        let mut out = group.next_column().unwrap().unwrap();
        write_cells(column, alter(column, table.cells(column)), out.untyped()).unwrap();
        out.close().unwrap();
    }
    group.close().unwrap();
    writer.into_inner().unwrap().into()
}

#[test]
fn table_round_trips_with_its_notes() {
    let records = ExampleLog::new(1).records(10);
    let mut before = Vec::new();
    let noted = |data: &[u8]| {
        before = data.to_vec();
        vec![("one", "1".to_owned()), ("two", "2".to_owned())]
    };
    let bytes: Bytes = encode(&records, "a", noted).unwrap().into();
    let found = footer(&bytes).unwrap();
    assert_eq!((&bytes[..found.data_bytes], found.notes.len()), (&before[..], 2));
    assert_eq!(found.notes.get("one").map(String::as_str), Some("1"));
    assert_eq!(found.notes.get("two").map(String::as_str), Some("2"));
    let read = decode(&bytes, &found).unwrap();
    assert_eq!((read.rows, &*read.node), (records.clone(), "a"));
    assert_eq!(
        altered(&records, |_, cells| cells),
        Bytes::from(encode(&records, "a", |_| Vec::new()).unwrap())
    );
}

#[test]
fn table_written_in_parts_equals_one_table() {
    let mut log = ExampleLog::new(1);
    let (one, two) = (log.records(3), log.records(4));
    let mut writer = TableWriter::new("a").unwrap();
    let mut bytes = Vec::new();
    for part in [&one, &two] {
        writer.write(part).unwrap();
        bytes.extend(writer.take().unwrap());
        assert!(writer.take().unwrap().is_empty());
    }
    bytes.extend(writer.finish().unwrap());
    let read = read(&bytes.into()).unwrap().rows;
    assert_eq!(read.iter().collect::<Vec<_>>(), one.iter().chain(two.iter()).collect::<Vec<_>>());
}

#[test]
fn changed_cell_in_any_column_is_detected() {
    let records = ExampleLog::new(1).records(6);
    for changed in COLUMNS {
        let bytes = altered(&records, |column, cells| match cells {
            cells if column.name != changed.name => cells,
            Cells::Numbers(mut cells) => {
                cells[4] += 1;
                Cells::Numbers(cells)
            }
            Cells::Texts(mut cells) => {
                cells[4] = Bytes::from([&cells[4][..], b"x"].concat());
                Cells::Texts(cells)
            }
            Cells::Hashes(mut cells) => {
                cells[4] = Bytes::copy_from_slice(&[0; 32]);
                Cells::Hashes(cells)
            }
        });
        match (read(&bytes), changed.name) {
            (Err(TableError::Cell { column, seq }), name) if column == name => {
                assert_eq!(seq, 5, "{name}")
            }
            // A changed number is reported for the id, which derives from it. Canonical bytes with an appended byte are
            // invalid.
            (Err(TableError::Cell { column: "id", seq }), "seq") => assert_eq!(seq, 6),
            (Err(TableError::Record(bad)), "record") => assert_eq!(bad.seq, 5),
            // A recorded hash is verified with the chain, not here.
            (Ok(read), "hash") => assert!(
                read.rows.check_chain(mcpproxy_activity::codec::genesis(read.rows.log())).is_err()
            ),
            (other, name) => panic!("{name}: {other:?}"),
        }
    }
}

/// Cells of a column as decoded by `parquet`.
fn by_library(bytes: &Bytes, at: usize) -> Cells {
    let reader = SerializedFileReader::new(bytes.clone()).unwrap();
    let group = reader.get_row_group(0).unwrap();
    let rows = group.metadata().num_rows() as usize;
    let copied = |cell: &[u8]| Bytes::copy_from_slice(cell);
    match group.get_column_reader(at).unwrap() {
        ColumnReader::Int64ColumnReader(mut reader) => {
            let mut cells = Vec::new();
            reader.read_records(rows, None, None, &mut cells).unwrap();
            Cells::Numbers(cells)
        }
        ColumnReader::ByteArrayColumnReader(mut reader) => {
            let mut cells: Vec<ByteArray> = Vec::new();
            reader.read_records(rows, None, None, &mut cells).unwrap();
            Cells::Texts(cells.iter().map(|cell| copied(cell.data())).collect())
        }
        ColumnReader::FixedLenByteArrayColumnReader(mut reader) => {
            let mut cells: Vec<FixedLenByteArray> = Vec::new();
            reader.read_records(rows, None, None, &mut cells).unwrap();
            Cells::Hashes(cells.iter().map(|cell| copied(cell.data())).collect())
        }
        _ => unreachable!("column {at}"),
    }
}

#[test]
fn cells_equal_those_decoded_by_parquet() {
    let mut log = ExampleLog::new(1);
    let mut rows = RecordCollector::new(log.log);
    // Enough for several pages, an oversized dictionary and indexes of any width.
    for seq in 0..25_000_u64 {
        let long = format!("{seq:060}");
        let few = format!("{}", seq.wrapping_mul(2_654_435_761) % (1 + seq));
        let text =
            |text: &'static str| PayloadRef { bytes: text.as_bytes(), total: text.len() as u64 };
        let head = HeadRef {
            stored_ms: seq,
            kind: Type::ToolCall,
            source: Source::Mcp,
            principal: &long,
            status: Status::Success,
            operation: None,
            server: &few,
            tool: "t",
            error: "",
            started: u64::MAX - seq,
            duration_us: seq,
            overhead_us: 0,
            response_bytes: 1,
            session_id: &few,
            request_id: &few,
            parent: None,
            intent: text("{}"),
            variant: "",
            client_name: if seq < 10_000 { "a" } else { &few },
            repeated: 1,
        };
        log.push_head(&mut rows, &head, b"", few.as_bytes());
    }
    let rows = rows.finish();
    let bytes: Bytes = encode(&rows, "a", |_| Vec::new()).unwrap().into();
    let footer = footer(&bytes).unwrap();
    assert_eq!(decode(&bytes, &footer).unwrap().rows, rows);
    let chunks = &footer.groups[0].chunks;
    for (at, (column, chunk)) in COLUMNS.iter().zip(chunks).enumerate() {
        let chunk = bytes.slice(chunk.range.clone());
        let (cells, _) = read_pages(&chunk, column, rows.len(), &mut Unpacking::new()).unwrap();
        assert!(cells == by_library(&bytes, at), "{}", column.name);
    }
}

/// Thrift compact protocol encoder; each field takes the distance to the previous field id.
mod thrift {
    pub(crate) fn varint(mut value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value > 127 {
            bytes.push(value as u8 | 128);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }

    pub(crate) fn int(distance: u8, value: i64) -> Vec<u8> {
        [vec![distance << 4 | 5], varint((value << 1 ^ value >> 63) as u64)].concat()
    }

    pub(crate) fn long(distance: u8, value: i64) -> Vec<u8> {
        [vec![distance << 4 | 6], varint((value << 1 ^ value >> 63) as u64)].concat()
    }

    pub(crate) fn text(distance: u8, value: &str) -> Vec<u8> {
        [vec![distance << 4 | 8], varint(value.len() as u64), value.as_bytes().to_vec()].concat()
    }

    pub(crate) fn structure(distance: u8, fields: &[Vec<u8>]) -> Vec<u8> {
        [vec![distance << 4 | 12], fields.concat(), vec![0]].concat()
    }

    /// List that claims `count` structures and contains these.
    pub(crate) fn list(distance: u8, count: usize, structures: &[u8]) -> Vec<u8> {
        let head = vec![distance << 4 | 9, 0xf0 | 12];
        [head, varint(count as u64), structures.to_vec()].concat()
    }
}

/// File with this data and this footer.
fn framed(data: &[u8], footer: &[u8]) -> Bytes {
    let length = (footer.len() as u32).to_le_bytes();
    [b"PAR1", data, footer, &length, b"PAR1"].concat().into()
}

/// Error of decoding an invalid file.
fn refused(bytes: &Bytes) -> String {
    read(bytes).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn deeply_nested_schema_is_rejected() {
    let column = [thrift::int(3, 0), thrift::text(1, ""), thrift::int(1, 1), vec![0]].concat();
    for depth in [100, 1_000, 10_000, 100_000] {
        let columns = thrift::list(1, depth, &column.repeat(depth));
        let footer = [thrift::int(1, 1), columns, vec![0]].concat();
        refused(&framed(b"", &footer));
    }
}

#[test]
fn claimed_counts_do_not_allocate_memory() {
    let root = [thrift::text(4, ""), thrift::int(1, i64::from(i32::MAX)), vec![0]].concat();
    for footer in [
        // Claims many columns, groups and notes.
        [thrift::int(1, 1), thrift::list(1, 1, &root), vec![0]].concat(),
        [thrift::int(1, 1), thrift::list(3, i32::MAX as usize, b""), vec![0]].concat(),
        [thrift::int(1, 1), thrift::list(4, i32::MAX as usize, b""), vec![0]].concat(),
        [thrift::int(1, 1), thrift::list(1, usize::MAX, b""), vec![0]].concat(),
    ] {
        refused(&framed(b"", &footer));
    }
}

#[test]
fn oversized_footer_is_rejected_by_length() {
    let note = [thrift::text(1, ""), thrift::text(1, ""), vec![0]].concat();
    let count = (63 << 20) / note.len();
    let footer = [thrift::int(1, 1), thrift::list(4, count, &note.repeat(count)), vec![0]].concat();
    assert!(refused(&framed(b"", &footer)).contains("its footer has more than"));
    let records = ExampleLog::new(1).records(1);
    let noted = |bytes: usize| {
        let table = encode(&records, "a", |_| vec![("long", "x".repeat(bytes))]).unwrap();
        read(&table.into())
    };
    assert!(noted(64 << 10).is_ok(), "a note may have this size");
    assert!(noted(128 << 10).is_err());
}

/// Page with these cells.
fn page(kind: i64, field: u8, values: i64, encoding: i64, unpacked: i64, cells: &[u8]) -> Vec<u8> {
    let packed = snap::raw::Encoder::new().compress_vec(cells).unwrap();
    let head = [thrift::int(1, values), thrift::int(1, encoding)];
    let head = [
        thrift::int(1, kind),
        thrift::int(1, unpacked),
        thrift::int(1, packed.len() as i64),
        thrift::structure(field - 3, &head),
        vec![0],
    ];
    [head.concat(), packed].concat()
}

fn dictionary(values: i64, cells: &[u8]) -> Vec<u8> {
    page(2, 7, values, 0, cells.len() as i64, cells)
}

fn by_dictionary(values: i64, cells: &[u8]) -> Vec<u8> {
    page(0, 5, values, 8, cells.len() as i64, cells)
}

fn cells(chunk: Vec<u8>, rows: usize) -> Result<Cells, TableError> {
    let column = COLUMNS.iter().find(|column| column.name == "log").unwrap();
    read_pages(&chunk.into(), column, rows, &mut Unpacking::new()).map(|(cells, _)| cells)
}

/// Plain encoding of a text.
fn long_text(bytes: usize) -> Vec<u8> {
    [&(bytes as u32).to_le_bytes()[..], &vec![0; bytes]].concat()
}

#[test]
fn repeated_cell_counts_towards_the_size_each_time() {
    let rows = 1_u64 << 20;
    // Dictionary indexes of one bit, with one run that repeats the first cell in all rows.
    let all_of_the_first = [vec![1], thrift::varint(rows << 1), vec![0]].concat();
    let chunk = |bytes: usize| {
        let cells = [long_text(bytes), long_text(1)].concat();
        [dictionary(2, &cells), by_dictionary(rows as i64, &all_of_the_first)].concat()
    };
    assert!(chunk(1 << 20).len() < 60 << 10);
    let error = cells(chunk(1 << 20), rows as usize).unwrap_err().to_string();
    assert!(error.contains("uncompressed size is too large"), "{error}");
    assert_eq!(cells(chunk(63), rows as usize).unwrap().len(), rows as usize);
}

#[test]
fn dictionary_larger_than_record_count_is_rejected() {
    // An empty text takes four bytes in a page, and eight times as much in memory.
    let empty = vec![0; 16 << 20];
    let count = empty.len() / 4;
    let first = by_dictionary(1, &[0, 2]);
    let chunk = [dictionary(count as i64, &empty), first.clone()].concat();
    assert!(chunk.len() < 1 << 20);
    let error = cells(chunk, 1).unwrap_err().to_string();
    assert!(error.contains("a dictionary has more cells"), "{error}");
    let two = [long_text(3), long_text(4)].concat();
    let chunk = |values| [dictionary(values, &two), first.clone()].concat();
    let error = cells(chunk(2), 1).unwrap_err().to_string();
    assert!(error.contains("a dictionary has more cells"), "{error}");
    let both = [dictionary(2, &two), by_dictionary(2, &[1, 3, 0b10])].concat();
    let both = cells(both, 2).unwrap();
    assert_eq!(both, Cells::Texts(vec![Bytes::from(vec![0; 3]), Bytes::from(vec![0; 4])]));
}

#[test]
fn page_must_match_its_header() {
    let text = long_text(3);
    let plain = |values, unpacked| page(0, 5, values, 0, unpacked, &text);
    assert_eq!(cells(plain(1, 7), 1).unwrap(), Cells::Texts(vec![Bytes::from_static(&[0; 3])]));
    for (chunk, why) in [
        (plain(1, 8), "length of a page is wrong"),
        (plain(1, i64::from(i32::MAX)), "length of a page is wrong"),
        (plain(1, -1), "out of range"),
        (plain(2, 7), "too many"),
        (plain(0, 7), "no cells"),
        (plain(i64::from(i32::MAX), 7), "too many"),
        (page(0, 5, 1, 5, 7, &text), "unsupported encoding"),
        (page(0, 5, 1, 8, 7, &text), "unsupported encoding"),
        (page(3, 5, 1, 0, 7, &text), "unsupported type"),
        (page(2, 5, 1, 0, 7, &text), "unsupported type"),
        (dictionary(i64::from(i32::MAX), &text), "more cells"),
        (dictionary(1, &text[..5]), "do not match its header"),
        (dictionary(0, &text), "do not match its header"),
        ([dictionary(1, &text), dictionary(1, &text)].concat(), "precede all cells"),
        ([plain(1, 7), dictionary(1, &text)].concat(), "precede all cells"),
        ([dictionary(1, &text), by_dictionary(1, &[1, 2, 1])].concat(), "index is out of range"),
        ([dictionary(1, &text), by_dictionary(1, &[33, 2, 1])].concat(), "unsupported encoding"),
        ([dictionary(1, &text), by_dictionary(1, &[32, 3, 1])].concat(), "truncated"),
        ([dictionary(1, &text), by_dictionary(1, &[0, 0, 0])].concat(), "truncated"),
        ([dictionary(1, &text), by_dictionary(1, &[])].concat(), "truncated"),
        (plain(1, 7)[..9].to_vec(), "truncated"),
        (Vec::new(), "too short"),
    ] {
        let error = cells(chunk, 1).unwrap_err().to_string();
        assert!(error.contains(why), "{why}: {error}");
    }
    let one = [dictionary(1, &text), by_dictionary(1, &[0, 2])].concat();
    assert_eq!(cells(one, 1).unwrap().len(), 1);
}

#[test]
fn footer_column_claims_are_verified() {
    let records = ExampleLog::new(1).records(9);
    let whole = encode(&records, "a", |_| Vec::new()).unwrap();
    let data = footer(&Bytes::copy_from_slice(&whole)).unwrap().data_bytes;
    let with = |from: &[u8], to: &[u8]| {
        let at = whole[data..].windows(from.len()).position(|window| window == from).unwrap();
        let mut bytes = whole.clone();
        bytes[data + at..data + at + from.len()].copy_from_slice(to);
        bytes.into()
    };
    // A wrong maximum would make queries for the last record skip the table.
    let bound =
        |greatest: u64| [&thrift::text(1, "        ")[..2], &greatest.to_le_bytes()].concat();
    let error = refused(&with(&bound(9), &bound(8)));
    assert!(error.contains("the bounds of column seq"), "{error}");
    // Two columns with swapped names.
    let error = refused(&with(&thrift::text(1, "status"), &thrift::text(1, "source")));
    assert!(error.contains("different columns"), "{error}");
    // A time in a different unit.
    let error = refused(&with(&[0x11, 0x1c, 0x2c, 0], &[0x11, 0x1c, 0x1c, 0]));
    assert!(error.contains("different columns"), "{error}");
    // A column at a different offset.
    let id = footer(&Bytes::copy_from_slice(&whole)).unwrap().groups[0].chunks[1].range.start;
    let begins = |at: usize| thrift::long(2, at as i64);
    let error = refused(&with_footer(&whole, &[(begins(id), begins(id + 1))]));
    assert!(error.contains("not adjacent"), "{error}");
}

/// Table with these replacements in its footer, each at the first match.
fn with_footer(whole: &[u8], changes: &[(Vec<u8>, Vec<u8>)]) -> Bytes {
    let data = footer(&Bytes::copy_from_slice(whole)).unwrap().data_bytes;
    let mut changed = whole[data..whole.len() - 8].to_vec();
    for (from, to) in changes {
        let at = changed.windows(from.len()).position(|window| window == &from[..]);
        let at = at.unwrap_or_else(|| panic!("{from:?} not found"));
        changed = [&changed[..at], &to[..], &changed[at + from.len()..]].concat();
    }
    framed(&whole[4..data], &changed)
}

#[test]
fn footer_group_and_page_claims_are_verified() {
    let rows = 9;
    let whole = encode(&ExampleLog::new(1).records(rows as u64), "a", |_| Vec::new()).unwrap();
    let parsed = footer(&Bytes::copy_from_slice(&whole)).unwrap();
    let chunks = &parsed.groups[0].chunks;
    let with = |changes: &[(Vec<u8>, Vec<u8>)]| with_footer(&whole, changes);
    let check = |why: &str, changes: &[(Vec<u8>, Vec<u8>)]| {
        let error = refused(&with(changes));
        assert!(error.contains(why), "{why}: {error}");
    };
    assert!(read(&with(&[])).is_ok(), "unaltered");

    // Group fields: uncompressed size, records, offset, compressed size, ordinal.
    let unpacked = chunks.iter().map(|chunk| chunk.unpacked).sum::<usize>() as i64;
    let packed = chunks.iter().map(|chunk| chunk.range.len()).sum::<usize>() as i64;
    let group = |unpacked: i64, start: i64, packed: i64, place: u8| {
        let numbers = [thrift::long(1, unpacked), thrift::long(1, rows), thrift::long(2, start)];
        [numbers.concat(), thrift::long(1, packed), vec![0x14, 2 * place]].concat()
    };
    let as_written = group(unpacked, 4, packed, 0);
    for other in [
        group(unpacked + 1, 4, packed, 0),
        group(unpacked, 4 + parsed.data_bytes as i64, packed, 0),
        group(unpacked, 4, packed - 1, 0),
    ] {
        check("the offset or sizes of a group", &[(as_written.clone(), other)]);
    }
    let second = group(unpacked, 4, packed, 1);
    check("a group has an unexpected field", &[(as_written.clone(), second)]);
    let min = [thrift::long(1, unpacked), thrift::long(1, rows), vec![0]].concat();
    let min = (as_written.iter().copied().chain([0]).collect(), min);
    assert!(read(&with(&[min])).is_ok(), "the field is optional");

    // Fields of a column with a dictionary: uncompressed size, encodings, offset of its data.
    let node = &chunks[2];
    let sizes = |unpacked: usize| {
        let packed = thrift::long(1, node.range.len() as i64);
        [thrift::long(1, rows), thrift::long(1, unpacked as i64), packed].concat()
    };
    let of_group = (thrift::long(1, unpacked), thrift::long(1, unpacked + 1));
    let more = (sizes(node.unpacked), sizes(node.unpacked + 1));
    check("the pages of column node", &[more, of_group]);
    let ways = |last: u8| vec![0x19, 0x35, 0, 2 * 3, 2 * last];
    check("the pages of column node", &[(ways(8), ways(2))]);
    let place = |cells: usize, dictionary: usize| {
        [thrift::long(2, cells as i64), thrift::long(2, dictionary as i64)].concat()
    };
    let (start, cells) = (node.range.start, node.range.start + node.cells_at);
    check("the pages of column node", &[(place(cells, start), place(cells + 1, start))]);
    // The footer omits an existing dictionary, or claims one that does not exist.
    let counted = |distance: u8| vec![distance << 4 | 9];
    let without = [thrift::long(2, start as i64), counted(4)].concat();
    let with_one = [place(cells, start), counted(2)].concat();
    check("the pages of column node", &[(with_one, without)]);
    let id = chunks[1].range.start;
    let without = [thrift::long(2, id as i64), counted(4)].concat();
    let with_one = [place(id, id), counted(2)].concat();
    check("the pages of column id", &[(without, with_one)]);
    // The footer claims only plain pages, too many pages, or no page counts.
    let pages = |pages: &[(i64, i64, i64)]| {
        let numbers = |(kind, way, count): &(i64, i64, i64)| {
            [thrift::int(1, *kind), thrift::int(1, *way), thrift::int(1, *count), vec![0]].concat()
        };
        let all: Vec<u8> = pages.iter().flat_map(numbers).collect();
        [vec![(pages.len() as u8) << 4 | 12], all].concat()
    };
    let of_node = pages(&[(2, 0, 1), (0, 8, 1)]);
    for other in [&[(2, 0, 1), (0, 0, 1)][..], &[(2, 0, 1), (0, 8, 2)], &[(0, 8, 1)]] {
        check("the pages of column node", &[(of_node.clone(), pages(other))]);
    }
    let counts = [place(cells, start), counted(2), of_node].concat();
    assert!(read(&with(&[(counts, place(cells, start))])).is_ok(), "the field is optional");

    // Changes of the writer, the version and the column orders.
    let friend = (b"mcpproxy ledger".to_vec(), b"parquet-mr next".to_vec());
    let version = (thrift::int(1, 1), thrift::int(1, 2));
    let order = |kind: u8| vec![0xfc, COLUMNS.len() as u8, kind << 4 | 12, 0, 0];
    for change in [friend, version, (order(1), order(2))] {
        check("its footer has a different format", &[change]);
    }
}

#[test]
fn foreign_tables_are_rejected() {
    let records = ExampleLog::new(1).records(3);
    let whole = encode(&records, "a", |_| Vec::new()).unwrap();
    for cut in [0, 1, 4, 8, whole.len() / 2, whole.len() - 1] {
        assert!(read(&Bytes::copy_from_slice(&whole[..cut])).is_err(), "cut at {cut}");
    }
    let schema = Arc::new(parse_message_type("message activity { required int64 seq; }").unwrap());
    let writer = SerializedFileWriter::new(Vec::new(), schema, properties()).unwrap();
    let other: Bytes = writer.into_inner().unwrap().into();
    assert!(
        matches!(read(&other), Err(TableError::Form(why)) if why.contains("different columns"))
    );
    let empty: Bytes = TableWriter::new("a").unwrap().finish().unwrap().into();
    assert!(matches!(read(&empty), Err(TableError::Form(why)) if why.contains("no records")));
}

// Requirement PAR-1.
#[test]
fn columns_match_the_guide() {
    let guide = include_str!("../../guide/fleet.md");
    for name in column_names() {
        assert!(guide.contains(&format!("| `{name}` |")), "{name}");
    }
}

proptest! {
    #[test]
    fn arbitrary_records_round_trip(
        texts in prop::collection::vec("[a-zé\u{1F600}\"\\\\\n]{0,12}", 10),
        numbers in prop::collection::vec(any::<u64>(), 6),
        arguments: Vec<u8>, response: Vec<u8>, kind in 0..Type::ALL.len(), status in 0..Status::ALL.len(),
    ) {
        let mut log = ExampleLog::new(2);
        let mut rows = RecordCollector::new(log.log);
        let head = HeadRef {
            stored_ms: numbers[0] % (1 << 48), kind: Type::ALL[kind], source: Source::Api,
            principal: &texts[0], status: Status::ALL[status], operation: Some(Operation::Read),
            server: &texts[1], tool: &texts[2], error: &texts[3], started: numbers[1],
            duration_us: numbers[2], overhead_us: numbers[3], response_bytes: numbers[4],
            session_id: &texts[4], request_id: &texts[5], parent: None,
            intent: PayloadRef { bytes: texts[6].as_bytes(), total: texts[6].len() as u64 },
            variant: &texts[7], client_name: &texts[8],
            repeated: 1,
        };
        log.push_head(&mut rows, &head, &arguments, &response);
        let rows = rows.finish();
        let bytes: Bytes = encode(&rows, &texts[9], |_| Vec::new()).unwrap().into();
        let read = read(&bytes).unwrap();
        prop_assert_eq!(read.rows, rows);
        prop_assert_eq!(&*read.node, texts[9].as_str());
    }

    // Requirement PAR-2.
    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
        prop_assert!(read(&bytes.clone().into()).is_err());
        prop_assert!(read(&framed(b"", &bytes)).is_err());
    }
}
