//! Target `sse`: an event stream gives the same events regardless of how it is split, and encoded events decode to the
//! original ones.
//!
//! Input: a byte for the size of the pieces, then the stream.

use bytes::Bytes;
use mcpproxy_protocol::wire::sse::{Decoder, Encoder, Error, Item};

pub fn run(data: &[u8]) {
    let Some((&size, stream)) = data.split_first() else { return };
    let size = usize::from(size).max(1);
    assert_eq!(decode(stream.chunks(size)), decode(std::iter::once(stream)));

    let mut encoder = Encoder::new();
    let mut wire = Vec::new();
    for chunk in stream.chunks(size) {
        encoder.data(Bytes::copy_from_slice(chunk), |part| wire.extend_from_slice(&part));
    }
    wire.extend_from_slice(&encoder.end());
    let Ok(events) = decode(std::iter::once(wire.as_slice())) else {
        unreachable!("our own events hold no long field")
    };
    if !stream.is_empty() {
        assert_eq!(events, [unix_lines(stream)]);
    }
}

fn decode<'a>(chunks: impl Iterator<Item = &'a [u8]>) -> Result<Vec<Vec<u8>>, Error> {
    let mut decoder = Decoder::new();
    let mut events = Vec::new();
    let mut event = Vec::new();
    for chunk in chunks {
        decoder.push(Bytes::copy_from_slice(chunk));
        while let Some(item) = decoder.next_item()? {
            match item {
                Item::Data(part) => event.extend_from_slice(&part),
                Item::End => events.push(std::mem::take(&mut event)),
            }
        }
    }
    Ok(events)
}

fn unix_lines(text: &[u8]) -> Vec<u8> {
    let mut lines = Vec::with_capacity(text.len());
    let mut after_cr = false;
    for &byte in text {
        match byte {
            b'\n' if after_cr => {}
            b'\r' | b'\n' => lines.push(b'\n'),
            _ => lines.push(byte),
        }
        after_cr = byte == b'\r';
    }
    lines
}
