//! Records on their way from one node to another: as bytes, and read again. Pure.
//!
//! ```text
//! records   (log (16) · name · seq · previous hash (32) · hash (32) · head · 0, or 1 and the body,
//!            or 2 and the metadata)*
//! ```
//!
//! Numbers are varints, the others carry their length. What comes is another node's word: it is read within bounds, and whether a
//! hash is that of the bytes is looked at where the bytes are handed on ([`canonical`]).

use std::sync::Arc;

use super::bytes::{DecodeError, Reader, put_bytes, put_payload, put_varint};
use super::codec;
use super::record::{Body, Hash, NodeId, ReadBody, Record};

/// Most records of one answer.
pub const MAX_RECORDS: usize = 4096;
/// Most bytes of a node's name.
const MAX_NAME_BYTES: usize = 256;

/// Appends a record, with what was read of its body.
pub fn put_record(out: &mut Vec<u8>, record: &Record) {
    out.extend_from_slice(&record.node.0);
    put_bytes(out, record.node_name.as_deref().unwrap_or_default().as_bytes());
    put_varint(out, record.seq);
    out.extend_from_slice(&record.prev_hash.0);
    out.extend_from_slice(&record.hash.0);
    put_bytes(out, &head_of(record));
    match &record.body {
        ReadBody::Unread => out.push(0),
        ReadBody::Whole(body) => {
            out.push(1);
            put_bytes(out, &encoded(body));
        }
        ReadBody::Metadata(metadata) => {
            out.push(2);
            put_payload(out, metadata.borrowed());
        }
    }
}

/// Reads what [`put_record`] wrote, all of it.
///
/// # Errors
///
/// [`DecodeError`] for anything else, and for more than [`MAX_RECORDS`].
pub fn read_records(bytes: &[u8]) -> Result<Vec<Record>, DecodeError> {
    let (mut reader, mut records) = (Reader(bytes), Vec::new());
    let mut names: Vec<Arc<str>> = Vec::new();
    while reader.end().is_err() {
        if records.len() >= MAX_RECORDS {
            return Err(DecodeError::Value);
        }
        let node = NodeId(reader.array()?);
        let name = reader.text()?;
        if name.len() > MAX_NAME_BYTES {
            return Err(DecodeError::Value);
        }
        let seq = reader.varint()?;
        let (prev, hash) = (Hash(reader.array()?), Hash(reader.array()?));
        let head = reader.bytes()?;
        let (body, metadata) = match reader.byte()? {
            0 => (None, None),
            1 => (Some(reader.bytes()?), None),
            2 => (None, Some(reader.payload()?)),
            _ => return Err(DecodeError::Value),
        };
        let mut record = Record::decode(node, seq, prev, hash, head, body)?;
        if let Some(metadata) = metadata {
            record.body = ReadBody::Metadata(metadata.to_owned());
        }
        if !name.is_empty() {
            // The records of an answer are of few nodes.
            let known = names.iter().find(|it| ***it == *name).cloned();
            let shared = known.unwrap_or_else(|| {
                let shared = Arc::<str>::from(name);
                names.push(Arc::clone(&shared));
                shared
            });
            record.node_name = Some(shared);
        }
        records.push(record);
    }
    Ok(records)
}

/// Head and body of a record as the chain has them; `None` where its hash is not that of these bytes: an older version wrote them
/// otherwise, or they are not what its node has stored.
#[must_use]
pub fn canonical(record: &Record) -> Option<(Vec<u8>, Vec<u8>)> {
    let (head, body) = (head_of(record), encoded(record.body.whole()?));
    let hash = codec::chain(record.prev_hash, record.node, record.seq, &head, &body);
    (hash == record.hash).then_some((head, body))
}

fn head_of(record: &Record) -> Vec<u8> {
    let mut head = Vec::new();
    codec::encode_head(&record.head.borrowed(), &mut head);
    head
}

fn encoded(body: &Body) -> Vec<u8> {
    let mut bytes = Vec::new();
    let (arguments, response) = (body.arguments.borrowed(), body.response.borrowed());
    codec::encode_body(arguments, response, body.metadata.borrowed(), &mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::activity::query::{Filter, Page, Payloads};
    use crate::activity::replica::tests::copy_of;

    #[test]
    fn records_come_as_they_went_with_their_bodies_and_without() {
        let (_folder, view) = copy_of(1, 40);
        for payloads in [Payloads::Include, Payloads::Exclude, Payloads::HeadsOnly] {
            let page = Page { payloads, ..Page::default() };
            let records = view.list(&Filter::default(), &page).unwrap().records;
            assert_eq!(records.len(), 40);
            let mut bytes = Vec::new();
            records.iter().for_each(|record| put_record(&mut bytes, record));
            assert_eq!(read_records(&bytes).unwrap(), records);
            for cut in 1..bytes.len() {
                let read = read_records(&bytes[..cut]);
                assert!(read.is_err() || read.unwrap().len() < 40, "{cut}");
            }
            let has_body = payloads == Payloads::Include;
            assert!(records.iter().all(|record| canonical(record).is_some() == has_body));
        }
    }

    #[test]
    fn what_is_not_as_the_chain_has_it_is_none_of_it() {
        let (_folder, view) = copy_of(1, 1);
        let record = view.list(&Filter::default(), &Page::default()).unwrap().records.remove(0);
        assert!(canonical(&record).is_some());
        let mut altered = record.clone();
        altered.head.duration_us += 1;
        assert_eq!(canonical(&altered), None);
        assert_eq!(canonical(&Record { seq: 2, ..record }), None);
    }

    #[test]
    fn an_answer_holds_so_many_records_and_no_more() {
        let (_folder, view) = copy_of(1, 1);
        let record = view.list(&Filter::default(), &Page::default()).unwrap().records.remove(0);
        let mut bytes = Vec::new();
        (0..MAX_RECORDS).for_each(|_| put_record(&mut bytes, &record));
        assert_eq!(read_records(&bytes).unwrap().len(), MAX_RECORDS);
        put_record(&mut bytes, &record);
        assert_eq!(read_records(&bytes), Err(DecodeError::Value));
    }

    proptest! {
        #[test]
        fn any_bytes_are_records_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = read_records(&bytes);
        }
    }
}
