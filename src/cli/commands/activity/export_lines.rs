//! An export as it comes, cut into records: what came whole, and the last record of it, so that an
//! export which breaks off can be gone on with.

use crate::activity::Id;

/// Characters of a record's id.
const ID_CHARS: usize = 26;
/// What stands before the id in a line of JSON.
const JSON_HEAD: &[u8] = b"{\"id\":\"";
/// How a line of CSV begins that names the columns.
const CSV_HEAD: &[u8] = b"id,";

/// How an export is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExportFormat {
    /// An object per line.
    Json,
    /// A header line, then a line per record.
    Csv,
    /// Bytes that are of use only when all have come.
    Parquet,
}

impl ExportFormat {
    /// The form of that name.
    pub(super) fn of(name: &str) -> Self {
        match name {
            "csv" => Self::Csv,
            "parquet" => Self::Parquet,
            _ => Self::Json,
        }
    }
}

/// The lines of an export.
#[derive(Debug)]
pub(super) struct ExportLines {
    format: ExportFormat,
    /// What has come of the record that is not whole.
    rest: Vec<u8>,
    /// Bytes of it that were looked at.
    seen: usize,
    /// Inside a quoted cell, where a line end ends no record.
    quoted: bool,
    /// The last line, if it was none of a record.
    words: Option<String>,
    /// The last record that came whole.
    pub(super) last: Option<String>,
}

impl ExportLines {
    pub(super) fn new(format: ExportFormat) -> Self {
        let (rest, words, last) = (Vec::new(), None, None);
        Self { format, rest, seen: 0, quoted: false, words, last }
    }

    /// Takes a chunk in; the records that are whole now.
    pub(super) fn push(&mut self, chunk: &[u8]) -> Vec<u8> {
        if self.format == ExportFormat::Parquet {
            return chunk.to_owned();
        }
        self.rest.extend_from_slice(chunk);
        let mut whole = Vec::new();
        let mut start = 0;
        while let Some(at) = self.line_end() {
            let line = self.rest.get(start..=at).unwrap_or_default();
            match record(self.format, line) {
                Line::Record(id) => {
                    self.last = Some(id);
                    whole.extend_from_slice(line);
                }
                Line::Header => whole.extend_from_slice(line),
                Line::Words => self.words = Some(String::from_utf8_lossy(line).trim().to_owned()),
            }
            start = at + 1;
        }
        self.rest.drain(..start);
        self.seen = self.rest.len();
        whole
    }

    /// Where the next line ends.
    fn line_end(&mut self) -> Option<usize> {
        let (mut quoted, csv) = (self.quoted, self.format == ExportFormat::Csv);
        let mut unseen = self.rest.iter().enumerate().skip(self.seen);
        let end = unseen.find_map(|(at, byte)| {
            quoted ^= csv && *byte == b'"';
            (*byte == b'\n' && !quoted).then_some(at)
        });
        self.quoted = quoted;
        self.seen = end.map_or(self.rest.len(), |at| at + 1);
        end
    }

    /// It broke off: forgets what was not whole. Its last words, if it had some.
    pub(super) fn restart(&mut self) -> Option<String> {
        self.rest.clear();
        (self.seen, self.quoted) = (0, false);
        self.words.take()
    }
}

/// What a whole line is.
enum Line {
    Record(String),
    Header,
    Words,
}

fn record(format: ExportFormat, line: &[u8]) -> Line {
    let id = match format {
        ExportFormat::Json => line.strip_prefix(JSON_HEAD),
        ExportFormat::Csv if line.starts_with(CSV_HEAD) => return Line::Header,
        ExportFormat::Csv => Some(line),
        // It has no lines.
        ExportFormat::Parquet => None,
    };
    let id = id.and_then(|rest| std::str::from_utf8(rest.get(..ID_CHARS)?).ok());
    match id.filter(|id| Id::parse(id).is_some()) {
        Some(id) => Line::Record(id.to_owned()),
        None => Line::Words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "01KAJ2Z8Q4T5V6W7X8Y9Z0A1B2";
    const TWO: &str = "01KAJ2Z8Q4T5V6W7X8Y9Z0A1B3";

    fn check(format: ExportFormat, text: &str, records: &str, words: Option<&str>) {
        for cut in 0..=text.len() {
            let (one, two) = text.as_bytes().split_at(cut);
            let mut lines = ExportLines::new(format);
            let whole = [lines.push(one), lines.push(two)].concat();
            assert_eq!(String::from_utf8_lossy(&whole), records, "{cut}");
            assert_eq!(lines.last.as_deref(), Some(TWO));
            assert_eq!(lines.restart().as_deref(), words, "{cut}");
            assert!(lines.push(format!("{ONE},x").as_bytes()).is_empty(), "what was cut is gone");
        }
    }

    #[test]
    fn whole_records_are_told_from_what_broke_off_wherever_it_is_cut() {
        let whole = format!("{{\"id\":\"{ONE}\",\"seq\":1}}\n{{\"id\":\"{TWO}\",\"seq\":2}}\n");
        let words = "{\"error\":\"too slow\",\"resume_after\":null}";
        check(ExportFormat::Json, &format!("{whole}{words}\n"), &whole, Some(words));
        check(ExportFormat::Json, &format!("{whole}{{\"id\":\"01KA"), &whole, None);
        let whole = format!("id,seq\r\n{ONE},1,\"a\n{TWO},\"\"\n\"\r\n{TWO},2\r\n");
        check(
            ExportFormat::Csv,
            &format!("{whole}error: too slow\r\n"),
            &whole,
            Some("error: too slow"),
        );
        check(ExportFormat::Csv, &format!("{whole}{ONE},3,\"b\n"), &whole, None);
    }
}
