//! Content codings of responses (RFC 9110 §8.4.1): gzip, deflate, br and zstd.
//!
//! Some servers and proxies compress although identity is requested. Bodies are decoded as they arrive, in pieces of bounded size: all
//! limits apply to the decoded bytes. Regardless of the input, the decoder allocates at most the window of its coding (at most
//! [`MAX_WINDOW_BYTES`], for br 16 MiB) and one piece. Sans-I/O.

use std::fmt;
use std::io::{Read, Write};

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use bytes::{Buf, Bytes, BytesMut};
use flate2::write::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Number of decoded bytes above which a piece is returned.
const PIECE_BYTES: usize = 32 * 1024;
/// Number of bytes decoded per step by gzip and deflate, which expand by a factor of at most 1032.
const STEP_BYTES: usize = 256;
/// Maximum window of zstd: 8 MiB (RFC 9659 §3). The windows of br are at most 16 MiB.
pub(super) const MAX_WINDOW_BYTES: u64 = 8 << 20;

/// Incremental decoder: [`push`](Self::push) a chunk, take pieces until `None`, push the next, [`finish`](Self::finish).
pub(crate) struct ContentDecoder {
    name: &'static str,
    coding: Coding,
    input: Bytes,
}

enum Coding {
    Gzip(Box<MultiGzDecoder<Vec<u8>>>),
    /// Coding `deflate` before its first byte: either with the zlib header, or without it, as some servers send it.
    Deflate,
    Zlib(Box<ZlibDecoder<Vec<u8>>>),
    Raw(Box<DeflateDecoder<Vec<u8>>>),
    Brotli(Box<Brotli>),
    Zstd(Box<Zstd>),
}

/// Unsupported content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnknownCoding;

/// Error for a body that violates its content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BrokenCoding(&'static str);

impl fmt::Display for BrokenCoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its {} coding is broken or incomplete", self.0)
    }
}

impl ContentDecoder {
    /// Decoder for a `Content-Encoding`: `Ok(None)` for identity or an empty value, `Err` for an unknown coding.
    pub(crate) fn of(encoding: &[u8]) -> Result<Option<Self>, UnknownCoding> {
        let is = |name: &str| encoding.trim_ascii().eq_ignore_ascii_case(name.as_bytes());
        let (name, coding) = if is("") || is("identity") {
            return Ok(None);
        } else if is("gzip") || is("x-gzip") {
            ("gzip", Coding::Gzip(Box::new(MultiGzDecoder::new(Vec::new()))))
        } else if is("deflate") {
            ("deflate", Coding::Deflate)
        } else if is("br") {
            ("br", Coding::Brotli(Box::new(Brotli::new())))
        } else if is("zstd") {
            ("zstd", Coding::Zstd(Box::default()))
        } else {
            return Err(UnknownCoding);
        };
        Ok(Some(Self { name, coding, input: Bytes::new() }))
    }

    /// Adds the next chunk. The previous chunk must be used up.
    pub(crate) fn push(&mut self, chunk: Bytes) {
        debug_assert!(self.input.is_empty(), "the last chunk was not read to its end");
        self.input = chunk;
    }

    /// Next decoded bytes, never empty; `None` when the chunk is used up.
    pub(crate) fn next_piece(&mut self) -> Result<Option<Bytes>, BrokenCoding> {
        let broken = BrokenCoding(self.name);
        if let (Coding::Deflate, Some(first)) = (&self.coding, self.input.first()) {
            // The lower half of the zlib header's first byte denotes deflate. A raw stream can begin like this only with a stored block
            // whose reserved bits differ.
            self.coding = match first & 0x0f {
                8 => Coding::Zlib(Box::new(ZlibDecoder::new(Vec::new()))),
                _ => Coding::Raw(Box::new(DeflateDecoder::new(Vec::new()))),
            };
        }
        let piece = match &mut self.coding {
            Coding::Gzip(decoder) => step(&mut self.input, &mut **decoder, MultiGzDecoder::get_mut),
            Coding::Zlib(decoder) => step(&mut self.input, &mut **decoder, ZlibDecoder::get_mut),
            Coding::Raw(decoder) => step(&mut self.input, &mut **decoder, DeflateDecoder::get_mut),
            Coding::Brotli(decoder) => decoder.next_piece(&mut self.input),
            Coding::Zstd(decoder) => decoder.next_piece(&mut self.input),
            Coding::Deflate => Some(Vec::new()),
        };
        let piece = piece.ok_or(broken)?;
        Ok((!piece.is_empty()).then(|| piece.into()))
    }

    /// Checks that the body is complete at its end.
    pub(crate) fn finish(&mut self) -> Result<(), BrokenCoding> {
        let complete = match &mut self.coding {
            Coding::Gzip(decoder) => decoder.try_finish().is_ok(),
            Coding::Zlib(decoder) => decoder.try_finish().is_ok(),
            Coding::Raw(decoder) => decoder.try_finish().is_ok(),
            Coding::Brotli(decoder) => decoder.ended,
            Coding::Zstd(decoder) => decoder.has_ended(),
            // The body is empty.
            Coding::Deflate => true,
        };
        if complete { Ok(()) } else { Err(BrokenCoding(self.name)) }
    }
}

/// Decodes input until a piece is complete or the input is used up; `None` if the input is invalid.
fn step<D: Write>(
    input: &mut Bytes,
    decoder: &mut D,
    output: fn(&mut D) -> &mut Vec<u8>,
) -> Option<Vec<u8>> {
    while !input.is_empty() && output(decoder).len() < PIECE_BYTES {
        let part = input.split_to(STEP_BYTES.min(input.len()));
        // Flushed, because the decoder holds back output.
        decoder.write_all(&part).and_then(|()| decoder.flush()).ok()?;
    }
    Some(std::mem::take(output(decoder)))
}

struct Brotli {
    state: BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>,
    ended: bool,
}

impl Brotli {
    fn new() -> Self {
        let alloc = StandardAlloc::default;
        // Strict mode excludes the extension for large windows.
        Self { state: BrotliState::new_strict(alloc(), alloc(), alloc()), ended: false }
    }

    fn next_piece(&mut self, input: &mut Bytes) -> Option<Vec<u8>> {
        if self.ended {
            return input.is_empty().then(Vec::new);
        }
        let mut output = vec![0; PIECE_BYTES];
        let (mut available_in, mut read) = (input.len(), 0);
        let (mut available_out, mut written, mut total) = (output.len(), 0, 0);
        let result = BrotliDecompressStream(
            &mut available_in,
            &mut read,
            input,
            &mut available_out,
            &mut written,
            &mut output,
            &mut total,
            &mut self.state,
        );
        match result {
            BrotliResult::ResultFailure => return None,
            BrotliResult::ResultSuccess => self.ended = true,
            BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => {}
        }
        input.advance(read.min(input.len()));
        output.truncate(written);
        // No data may follow the end.
        (!self.ended || input.is_empty()).then_some(output)
    }
}

/// Block decoder for zstd (RFC 8878); consumes the frame header and each block as a whole.
#[derive(Default)]
struct Zstd {
    frames: FrameDecoder,
    /// Incomplete header or block: at most [`MAX_BLOCK_BYTES`] and a header.
    held: BytesMut,
    begun: bool,
    has_checksum: bool,
}

/// Maximum size of a block in bytes (RFC 8878 §3.1.1.2.3).
const MAX_BLOCK_BYTES: usize = 128 * 1024;
const BLOCK_HEADER_BYTES: usize = 3;
const CHECKSUM_BYTES: usize = 4;
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

impl Zstd {
    fn has_ended(&self) -> bool {
        self.begun && self.frames.is_finished() && self.held.is_empty()
    }

    fn next_piece(&mut self, input: &mut Bytes) -> Option<Vec<u8>> {
        loop {
            if self.begun && self.frames.can_collect() > 0 {
                let mut output = vec![0; PIECE_BYTES.min(self.frames.can_collect())];
                let read = self.frames.read(&mut output).ok()?;
                output.truncate(read);
                return Some(output);
            }
            if self.begun && self.frames.is_finished() {
                // Only a single frame is accepted; no data may follow.
                return (self.held.is_empty() && input.is_empty()).then(Vec::new);
            }
            let needed = self.needed()?;
            if self.held.len() < needed {
                let part = input.split_to((needed - self.held.len()).min(input.len()));
                self.held.extend_from_slice(&part);
                if self.held.len() < needed {
                    return Some(Vec::new());
                }
                continue;
            }
            let whole = self.held.split_to(needed);
            if self.begun {
                let strategy = BlockDecodingStrategy::UptoBlocks(1);
                self.frames.decode_blocks(&mut &*whole, strategy).ok()?;
            } else {
                self.frames.reset(&mut &*whole).ok()?;
                self.begun = true;
            }
        }
    }

    /// Size of the next header or block, as far as it is known; `None` if invalid.
    fn needed(&mut self) -> Option<usize> {
        if self.begun {
            let [a, b, c, ..] = *self.held else { return Some(BLOCK_HEADER_BYTES) };
            let header = u32::from_le_bytes([a, b, c, 0]);
            let (is_last, kind, size) = (header & 1 == 1, header >> 1 & 3, (header >> 3) as usize);
            let content = match kind {
                // A run of one byte; the size in the header is that of the decoded block.
                1 => 1,
                0 | 2 => size,
                _ => return None,
            };
            let checksum = if is_last && self.has_checksum { CHECKSUM_BYTES } else { 0 };
            return (size <= MAX_BLOCK_BYTES).then_some(BLOCK_HEADER_BYTES + content + checksum);
        }
        let Some(&descriptor) = self.held.get(MAGIC.len()) else { return Some(MAGIC.len() + 1) };
        if !self.held.starts_with(&MAGIC) {
            return None;
        }
        let is_single = descriptor >> 5 & 1 == 1;
        let window = usize::from(!is_single);
        let dictionary = [0, 1, 2, 4].get(usize::from(descriptor & 3))?;
        let size = [usize::from(is_single), 2, 4, 8];
        let size = size.get(usize::from(descriptor >> 6))?;
        let fixed = MAGIC.len() + 1;
        let length = fixed + window + dictionary + size;
        if self.held.len() == length {
            self.has_checksum = descriptor >> 2 & 1 == 1;
            let needed_window = match is_single {
                false => window_bytes(*self.held.get(fixed)?),
                true => {
                    let field = self.held.get(length - size..)?;
                    let value = field.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
                    value + if *size == 2 { 256 } else { 0 }
                }
            };
            if needed_window > MAX_WINDOW_BYTES {
                return None;
            }
        }
        Some(length)
    }
}

/// Window size of a descriptor (RFC 8878 §3.1.1.1.2).
fn window_bytes(descriptor: u8) -> u64 {
    let base = 1_u64 << (10 + (descriptor >> 3));
    base + base / 8 * u64::from(descriptor & 7)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

    use super::*;

    /// `{"jsonrpc":"2.0"}` and a line feed, compressed with `brotli`.
    const BROTLI: &[u8] = b"\x8b\x08\x80{\"jsonrpc\":\"2.0\"}\n\x03";
    const BROTLI_TEXT: &[u8] = b"{\"jsonrpc\":\"2.0\"}\n";

    pub(crate) fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    pub(crate) fn zlib(text: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn raw(text: &[u8]) -> Vec<u8> {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    pub(crate) fn zstd(text: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(text, ruzstd::encoding::CompressionLevel::Fastest)
    }

    /// Decodes a body in chunks of `size` bytes.
    fn decode(encoding: &str, body: &[u8], size: usize) -> Result<Vec<u8>, BrokenCoding> {
        let mut decoder = ContentDecoder::of(encoding.as_bytes()).unwrap().unwrap();
        let mut decoded = Vec::new();
        for chunk in body.chunks(size) {
            decoder.push(Bytes::copy_from_slice(chunk));
            while let Some(piece) = decoder.next_piece()? {
                assert!(piece.len() <= PIECE_BYTES + STEP_BYTES * 1040, "{}", piece.len());
                decoded.extend_from_slice(&piece);
            }
        }
        decoder.finish().map(|()| decoded)
    }

    #[test]
    fn pro_26_body_is_decoded_in_any_chunking() {
        let rows: Vec<String> = (0..5000).map(|n| format!("{{\"n\":{n}}}")).collect();
        let large = rows.join(",").into_bytes();
        for text in [&b"{}"[..], &large] {
            for (encoding, body) in [
                ("gzip", gzip(text)),
                ("X-GZIP", gzip(text)),
                ("deflate", zlib(text)),
                ("deflate", raw(text)),
                ("zstd", zstd(text)),
            ] {
                for size in [1, 7, 1000, body.len()] {
                    assert_eq!(
                        decode(encoding, &body, size).as_deref(),
                        Ok(text),
                        "{encoding} {size}"
                    );
                }
            }
        }
        for size in 1..=BROTLI.len() {
            assert_eq!(decode("br", BROTLI, size).as_deref(), Ok(BROTLI_TEXT), "{size}");
        }
        // Several gzip members form one body.
        let members = [gzip(b"{\"a\""), gzip(b":1}")].concat();
        assert_eq!(decode("gzip", &members, 5).as_deref(), Ok(&b"{\"a\":1}"[..]));
    }

    #[test]
    fn pro_26_large_expansion_is_returned_in_bounded_pieces() {
        let zeros = vec![b'0'; 20 << 20];
        for (encoding, body) in
            [("gzip", gzip(&zeros)), ("deflate", zlib(&zeros)), ("zstd", zstd(&zeros))]
        {
            assert!(body.len() < zeros.len() / 100, "{encoding}: {}", body.len());
            assert_eq!(decode(encoding, &body, body.len()).map(|all| all.len()), Ok(zeros.len()));
        }
    }

    #[test]
    fn pro_26_broken_or_incomplete_body_is_refused() {
        let text = b"{\"a\":[1,2,3,4,5,6,7,8]}";
        for (encoding, body) in
            [("gzip", gzip(text)), ("zstd", zstd(text)), ("br", BROTLI.to_vec())]
        {
            for cut in [1, 4, body.len() - 1] {
                assert!(decode(encoding, &body[..cut], 3).is_err(), "{encoding} cut at {cut}");
            }
            assert!(decode(encoding, text, 3).is_err(), "{encoding}: not compressed");
            let more = [&*body, b"{}"].concat();
            assert!(decode(encoding, &more, 3).is_err(), "{encoding}: bytes after the end");
        }
        // A window of 16 MiB.
        let window = [&MAGIC[..], &[0x00, 14 << 3, 1, 0, 0]].concat();
        assert!(decode("zstd", &window, 1).is_err());
        assert_eq!(window_bytes(13 << 3), MAX_WINDOW_BYTES);
    }

    #[test]
    fn pro_26_identity_and_empty_encodings_need_no_decoder() {
        for none in ["", " ", "identity", "Identity"] {
            assert!(ContentDecoder::of(none.as_bytes()).is_ok_and(|decoder| decoder.is_none()));
        }
        for unknown in ["compress", "gzip, br", "aes128gcm"] {
            assert!(ContentDecoder::of(unknown.as_bytes()).is_err(), "{unknown}");
        }
    }
}
