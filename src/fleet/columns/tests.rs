//! Tables come back, say what the records say, and a cell that does not is found.

use proptest::prelude::*;

use super::*;
use crate::activity::codec::{HeadRef, PayloadRef};
use crate::activity::record::{Operation, Source, Status, Type};
use crate::fleet::examples::ExampleLog;

/// A table whose cells were changed by `alter` on the way.
fn altered(records: &RecordRows, alter: impl Fn(&TableColumn, Cells) -> Cells) -> Bytes {
    let node = Bytes::from_static(b"a");
    let table = TableOf::new(records, &node).unwrap();
    let mut writer =
        SerializedFileWriter::new(Vec::new(), schema().unwrap(), properties()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for column in COLUMNS {
        let mut out = group.next_column().unwrap().unwrap();
        match (alter(column, table.cells(column)), out.untyped()) {
            (Cells::Numbers(cells), ColumnWriter::Int64ColumnWriter(out)) => {
                out.write_batch(&cells, None, None).unwrap();
            }
            (Cells::Texts(cells), ColumnWriter::ByteArrayColumnWriter(out)) => {
                let cells: Vec<ByteArray> = cells.into_iter().map(ByteArray::from).collect();
                out.write_batch(&cells, None, None).unwrap();
            }
            (Cells::Hashes(cells), ColumnWriter::FixedLenByteArrayColumnWriter(out)) => {
                let cells: Vec<FixedLenByteArray> =
                    cells.into_iter().map(|cell| ByteArray::from(cell).into()).collect();
                out.write_batch(&cells, None, None).unwrap();
            }
            _ => unreachable!("{}", column.name),
        }
        out.close().unwrap();
    }
    group.close().unwrap();
    writer.into_inner().unwrap().into()
}

#[test]
fn a_table_comes_back_with_its_notes() {
    let records = ExampleLog::new(1).records(10);
    let mut before = Vec::new();
    let noted = |data: &[u8]| {
        before = data.to_vec();
        vec![("one", "1".to_owned()), ("two", "2".to_owned())]
    };
    let bytes: Bytes = encode(&records, "a", noted).unwrap().into();
    let found = footer(&bytes).unwrap();
    assert_eq!((&bytes[..found.data_bytes], found.notes.len()), (&before[..], 2));
    let read = decode(&bytes).unwrap();
    assert_eq!((read.rows, &*read.node), (records.clone(), "a"));
    assert_eq!(read.notes.get("one").map(String::as_str), Some("1"));
    assert_eq!(read.notes.get("two").map(String::as_str), Some("2"));
    assert_eq!(
        altered(&records, |_, cells| cells),
        Bytes::from(encode(&records, "a", |_| Vec::new()).unwrap())
    );
}

#[test]
fn a_table_written_in_parts_is_one_table() {
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
    let read = decode(&bytes.into()).unwrap().rows;
    assert_eq!(read.iter().collect::<Vec<_>>(), one.iter().chain(two.iter()).collect::<Vec<_>>());
}

#[test]
fn a_cell_of_any_column_that_says_something_else_is_found() {
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
        match (decode(&bytes), changed.name) {
            (Err(TableError::Cell { column, seq }), name) if column == name => {
                assert_eq!(seq, 5, "{name}")
            }
            // Of the number, the id is made; a record's bytes have an end.
            (Err(TableError::Cell { column: "id", seq }), "seq") => assert_eq!(seq, 6),
            (Err(TableError::Record(bad)), "record") => assert_eq!(bad.seq, 5),
            // A stated hash is the chain's affair, which is checked by whoever has it.
            (Ok(read), "hash") => assert!(
                read.rows.check_chain(crate::activity::codec::genesis(read.rows.log())).is_err()
            ),
            (other, name) => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn what_is_no_table_of_ours_is_refused() {
    let records = ExampleLog::new(1).records(3);
    let whole = encode(&records, "a", |_| Vec::new()).unwrap();
    for cut in [0, 1, 4, 8, whole.len() / 2, whole.len() - 1] {
        assert!(decode(&Bytes::copy_from_slice(&whole[..cut])).is_err(), "cut at {cut}");
    }
    let schema = Arc::new(parse_message_type("message activity { required int64 seq; }").unwrap());
    let writer = SerializedFileWriter::new(Vec::new(), schema, properties()).unwrap();
    let other: Bytes = writer.into_inner().unwrap().into();
    assert!(matches!(decode(&other), Err(TableError::Form(why)) if why.contains("other columns")));
    let empty: Bytes = TableWriter::new("a").unwrap().finish().unwrap().into();
    assert!(matches!(decode(&empty), Err(TableError::Form(why)) if why.contains("no records")));
}

#[test]
fn the_columns_are_those_of_the_guide() {
    let guide = include_str!("../../guide/fleet.md");
    for name in column_names() {
        assert!(guide.contains(&format!("| `{name}` |")), "{name}");
    }
}

proptest! {
    #[test]
    fn any_record_comes_back(
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
        };
        log.push_head(&mut rows, &head, &arguments, &response);
        let rows = rows.finish();
        let bytes: Bytes = encode(&rows, &texts[9], |_| Vec::new()).unwrap().into();
        let read = decode(&bytes).unwrap();
        prop_assert_eq!(read.rows, rows);
        prop_assert_eq!(&*read.node, texts[9].as_str());
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
        prop_assert!(decode(&bytes.clone().into()).is_err());
        let framed = [b"PAR1", &bytes[..], &(bytes.len() as u32).to_le_bytes(), b"PAR1"].concat();
        prop_assert!(decode(&framed.into()).is_err());
    }
}
