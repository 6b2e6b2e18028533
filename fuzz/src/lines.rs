//! Target `lines`: the lines decoded from a stream in pieces of any size equal those of a simple split of the whole.
//!
//! Input: a byte for the size of the pieces, a byte for the maximum length of a line, then the stream.

use bytes::Bytes;
use mcpproxy_protocol::wire::lines::{Decoder, Item, TooLong, one_line};

pub fn run(data: &[u8]) {
    let [size, limit, stream @ ..] = data else { return };
    let limit = u64::from(*limit);
    let mut decoder = Decoder::new(limit);
    let (mut lines, mut line, mut too_long) = (Vec::new(), Vec::new(), 0);
    for chunk in stream.chunks(usize::from(*size).max(1)) {
        decoder.push(Bytes::copy_from_slice(chunk));
        loop {
            match decoder.next_item() {
                Ok(Some(Item::Data(part))) => line.extend_from_slice(&part),
                Ok(Some(Item::End)) => lines.push(std::mem::take(&mut line)),
                Err(TooLong { .. }) => {
                    line.clear();
                    too_long += 1;
                }
                Ok(None) => break,
            }
        }
    }
    let mut expected: Vec<&[u8]> = stream.split(|&byte| byte == b'\n').collect();
    let cut_off = expected.pop().unwrap_or_default();
    let fits = |line: &&[u8]| !line.is_empty() && line.len() as u64 <= limit;
    let long = |line: &&[u8]| line.len() as u64 > limit;
    assert_eq!(too_long, expected.iter().filter(|l| long(l)).count() + usize::from(long(&cut_off)));
    expected.retain(fits);
    assert_eq!(lines, expected);

    let flat = one_line(Bytes::copy_from_slice(stream));
    assert_eq!(flat.len(), stream.len());
    assert!(!flat.iter().any(|byte| matches!(byte, b'\r' | b'\n')));
}
