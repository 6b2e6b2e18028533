//! `mcpproxy activity export`: streams records into a file, with a progress bar and resumption.
//!
//! The file gets its final name when it is complete. An interrupted stream is resumed after the last complete record;
//! for formats that cannot be resumed (Parquet), the partial file is removed. [`ExportLines`] splits the stream into
//! complete records.

use crate::args::{ActivityExport, ActivityFilters};
use crate::backend::{Backend, StreamedBody, target};
use crate::commands::activity::status_of_rows::StatusOfRows;
use crate::error::{CommandError, Exit};
use crate::format::{counted, text};
use crate::output::Output;
use crate::terminal_safe::line;
use crate::{args, output};
use futures_util::TryStreamExt;
use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
use mcpproxy_activity::Id;
use mcpproxy_admin::api::export as lines;
use mcpproxy_admin::api::export::FLEET_MISSING;
use mcpproxy_runtime::os::private;
use serde_json::{Value, json};
use std::fs;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Suffix of an unfinished file.
const PARTIAL: &str = ".partial";

/// Exports the records that match the filters. Returns their number, if the format shows it.
pub(super) async fn run(
    flags: &ActivityExport,
    format: &str,
    backend: &Backend,
    output: &Output,
) -> Result<Option<u64>, CommandError> {
    let (since, until) = times(&flags.filters)?;
    if !flags.force {
        check_new(&flags.file)?;
    }
    let query = filters(&flags.filters, since.as_deref(), until.as_deref());
    let to = ExportTarget { file: &flags.file, format: ExportFormat::of(format) };
    let bar = match to.format {
        ExportFormat::Json | ExportFormat::Csv => records_bar_of(backend, &query).await?,
        // Parquet does not show the number of received records.
        ExportFormat::Parquet => ProgressBar::hidden(),
    };
    let mut export_query = query;
    let slower_than = minimum_duration(flags.slower_than);
    export_query.extend([
        ("format", Some(format)),
        ("text", flags.text.as_deref()),
        ("min_duration_ms", slower_than.as_deref()),
    ]);
    if flags.file == Path::new("-") {
        let mut out = std::io::stdout().lock();
        let written = copy(backend, &export_query, &to, &bar, |bytes| match out.write_all(bytes) {
            // The reader closed the pipe.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
            written => written.map(|()| true),
        });
        let Exported { records, missing, .. } = written.await?;
        bar.finish_and_clear();
        return check_complete(missing).map(|()| records);
    }
    let failed = |error: std::io::Error| unwritten(&flags.file, &error);
    let mut sink = Sink::create(&flags.file).map_err(failed)?;
    let write = |bytes: &[u8]| sink.out.write_all(bytes).map(|()| true);
    let Exported { bytes, records, missing } =
        copy(backend, &export_query, &to, &bar, write).await?;
    sink.finish().map_err(failed)?;
    bar.finish_and_clear();
    let mut done = json!({"file": flags.file.display().to_string(), "bytes": bytes});
    if let (Some(records), Some(members)) = (records, done.as_object_mut()) {
        members.insert("records".to_owned(), records.into());
    }
    output.print(&done.to_string(), draw)?;
    check_complete(missing).map(|()| records)
}

/// Value of `min_duration_ms` for `--slower-than`.
pub(super) fn minimum_duration(slower_than: Option<Duration>) -> Option<String> {
    slower_than.map(|least| least.as_millis().max(1).to_string())
}

/// Refuses to replace a file that has content. A pipe or a device is only written to.
fn check_new(path: &Path) -> Result<(), CommandError> {
    match fs::metadata(path) {
        Ok(there) if there.is_file() && there.len() > 0 => Err(CommandError::failed(format!(
            "{} already exists: choose another name, or pass --force to replace it",
            line(&path.display().to_string())
        ))),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Target file of an export, and its format.
struct ExportTarget<'f> {
    file: &'f Path,
    format: ExportFormat,
}

/// Result of an export.
struct Exported {
    bytes: usize,
    /// Number of records; `None` if the format does not show it.
    records: Option<u64>,
    /// Fleet nodes with missing records, and the reasons.
    missing: Option<String>,
}

/// Returns an error for an export that lacks records of fleet nodes: the file exists, but the command fails.
fn check_complete(missing: Option<String>) -> Result<(), CommandError> {
    let Some(missing) = missing else { return Ok(()) };
    let text = format!("the export is incomplete, as noted at its end: {missing}");
    Err(CommandError::new(Exit::Incomplete, text))
}

/// Copies the export stream, resuming it after interruptions. `write` returns false to stop.
async fn copy(
    backend: &Backend,
    export_query: &[(&str, Option<&str>)],
    to: &ExportTarget<'_>,
    bar: &ProgressBar,
    mut write: impl FnMut(&[u8]) -> std::io::Result<bool>,
) -> Result<Exported, CommandError> {
    let (mut retries, mut lines, mut bytes) = (Retries::default(), ExportLines::new(to.format), 0);
    let mut after: Option<String> = None;
    loop {
        let mut query = export_query.to_vec();
        query.push(("after", after.as_deref()));
        let broken = match backend.stream(&target(&["activity", "export"], &query), None).await {
            // An export that has not begun is not retried.
            Err(failure) if after.is_none() => return Err(failure),
            Err(failure) => failure,
            Ok(StreamedBody { headers, mut chunks }) => loop {
                let chunk = match chunks.try_next().await {
                    Ok(Some(chunk)) => chunk,
                    Ok(None) => {
                        // Parquet names missing nodes in its footer and in a header.
                        let named = headers.get(FLEET_MISSING).and_then(|it| it.to_str().ok());
                        let missing = lines.missing.take().or_else(|| named.map(str::to_owned));
                        return Ok(Exported { bytes, records: lines.records(), missing });
                    }
                    Err(failure) => break failure,
                };
                let whole = lines.push(&chunk);
                bar.set_position(lines.records);
                bytes += whole.len();
                if !write(&whole).map_err(|error| unwritten(to.file, &error))? {
                    return Ok(Exported { bytes, records: lines.records(), missing: None });
                }
                if !whole.is_empty() {
                    retries.reset();
                }
            },
        };
        // The server's error message, if it sent one.
        let broken = match lines.restart() {
            Some(message) => CommandError::failed(format!("{}: {message}", broken.message)),
            None => broken,
        };
        after = lines.last.clone();
        if after.is_none() && bytes > 0 {
            // Without a record to resume after, the export would start over and repeat the header.
            return Err(broken);
        }
        retries.next(broken).await?;
    }
}

fn draw(done: &Value) -> String {
    let [bytes, records, file] = ["/bytes", "/records", "/file"].map(|at| text(done, at));
    let records = match records.is_empty() {
        true => String::new(),
        false => format!("{}, ", counted(&records, "record")),
    };
    format!("{records}{} in {}", counted(&bytes, "byte"), line(&file))
}

fn unwritten(file: &Path, error: &std::io::Error) -> CommandError {
    CommandError::failed(format!("cannot write {}: {error}", file.display()))
}

/// Output file in progress, which is removed if dropped before the export is complete.
struct Sink {
    out: BufWriter<File>,
    /// Partial and final path; `None` if the target is not a regular file, such as a pipe.
    names: Option<(PathBuf, PathBuf)>,
}

impl Sink {
    /// Creates the file readable only by its owner, because it contains arguments and results.
    fn create(path: &Path) -> std::io::Result<Self> {
        if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
            let out = OpenOptions::new().write(true).truncate(true).open(path)?;
            return Ok(Self { out: BufWriter::new(out), names: None });
        }
        let mut partial = path.as_os_str().to_owned();
        partial.push(PARTIAL);
        let partial = PathBuf::from(partial);
        let out = BufWriter::new(private::create(&partial)?);
        Ok(Self { out, names: Some((partial, path.to_owned())) })
    }

    fn finish(mut self) -> std::io::Result<()> {
        self.out.flush()?;
        if let Some((partial, path)) = &self.names {
            self.out.get_ref().sync_all()?;
            fs::rename(partial, path)?;
            self.names = None;
        }
        Ok(())
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if let Some((partial, _)) = &self.names {
            // If the removal fails, the leftover file is recognizable by its suffix.
            let _ = fs::remove_file(partial);
        }
    }
}

/// Returns `--since` and `--until` as RFC 3339. A period that ends before it starts is an error.
pub(super) fn times(
    flags: &ActivityFilters,
) -> Result<(Option<String>, Option<String>), CommandError> {
    period(flags.since.as_deref(), flags.until.as_deref(), Timestamp::now())
        .map_err(CommandError::usage)
}

fn period(
    since: Option<&str>,
    until: Option<&str>,
    now: Timestamp,
) -> Result<(Option<String>, Option<String>), String> {
    let moment = |flag, time: Option<&str>| time.map(|it| args::moment(flag, it, now)).transpose();
    let (since, until) = (moment("--since", since)?, moment("--until", until)?);
    let parsed = |time: &Option<String>| time.as_deref()?.parse::<Timestamp>().ok();
    match (parsed(&since), parsed(&until)) {
        (Some(start), Some(end)) if start > end => {
            Err("--since must not be after --until".to_owned())
        }
        _ => Ok((since, until)),
    }
}

/// Query parameters of the filters, with the times read by [`times`].
pub(super) fn filters<'a>(
    flags: &'a ActivityFilters,
    since: Option<&'a str>,
    until: Option<&'a str>,
) -> Vec<(&'static str, Option<&'a str>)> {
    let records = &flags.records;
    let (server, tool) = records.server_and_tool();
    vec![
        ("type", StatusOfRows::types(records)),
        ("server", server),
        ("tool", tool),
        ("status", StatusOfRows::statuses(records)),
        ("intent_type", records.intent_type.as_deref()),
        ("session_id", records.session.as_deref()),
        ("request_id", records.request_id.as_deref()),
        ("principal", records.principal.as_deref()),
        ("node", flags.node.as_deref()),
        ("start_time", since),
        ("end_time", until),
    ]
}

/// Characters of a record id.
const ID_CHARS: usize = 26;
/// Text before the id in a JSON line.
const JSON_HEAD: &[u8] = b"{\"id\":\"";
/// Beginning of a CSV header line.
const CSV_HEAD: &[u8] = b"id,";

/// Export format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExportFormat {
    /// One object per line.
    Json,
    /// A header line, then a line per record.
    Csv,
    /// Binary; only usable when complete.
    Parquet,
}

impl ExportFormat {
    /// Returns the format with this name.
    pub(super) fn of(name: &str) -> Self {
        match name {
            "csv" => Self::Csv,
            "parquet" => Self::Parquet,
            _ => Self::Json,
        }
    }
}

/// Incremental splitter of an export stream into complete lines.
#[derive(Debug)]
pub(super) struct ExportLines {
    format: ExportFormat,
    /// Incomplete last line.
    rest: Vec<u8>,
    /// Number of bytes of `rest` already scanned.
    seen: usize,
    /// Whether the position is inside a quoted CSV cell, where a line break does not end a record.
    quoted: bool,
    /// Last line that is not a record, such as an error message.
    message: Option<String>,
    /// Missing fleet records, as stated by the last line.
    pub(super) missing: Option<String>,
    /// Id of the last complete record.
    pub(super) last: Option<String>,
    /// Number of complete records.
    records: u64,
}

impl ExportLines {
    pub(super) fn new(format: ExportFormat) -> Self {
        let (rest, message, missing, last) = (Vec::new(), None, None, None);
        Self { format, rest, seen: 0, quoted: false, message, missing, last, records: 0 }
    }

    /// Number of complete records; `None` for Parquet, which has no lines.
    fn records(&self) -> Option<u64> {
        match self.format {
            ExportFormat::Json | ExportFormat::Csv => Some(self.records),
            ExportFormat::Parquet => None,
        }
    }

    /// Adds a chunk. Returns the lines that are now complete.
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
                    self.records += 1;
                    whole.extend_from_slice(line);
                }
                Line::Header => whole.extend_from_slice(line),
                Line::Missing(why) => {
                    self.missing = Some(why);
                    whole.extend_from_slice(line);
                }
                Line::Message => {
                    self.message = Some(String::from_utf8_lossy(line).trim().to_owned())
                }
            }
            start = at + 1;
        }
        self.rest.drain(..start);
        self.seen = self.rest.len();
        whole
    }

    /// End of the next line.
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

    /// Discards an incomplete line after an interruption. Returns the error message, if one was received.
    pub(super) fn restart(&mut self) -> Option<String> {
        self.rest.clear();
        (self.seen, self.quoted) = (0, false);
        self.message.take()
    }
}

/// Kind of a complete line.
enum Line {
    Record(String),
    Header,
    /// States which fleet nodes lack records.
    Missing(String),
    Message,
}

/// Missing fleet records stated by a line.
fn missing_of(format: ExportFormat, line: &[u8]) -> Option<String> {
    match format {
        ExportFormat::Json => {
            lines::read_missing_line(line).map(|missing| lines::missing_text(&missing))
        }
        ExportFormat::Csv => {
            let text = String::from_utf8_lossy(line);
            let text = text.trim();
            let text = text.strip_prefix('"').and_then(|it| it.strip_suffix('"')).unwrap_or(text);
            text.strip_prefix(lines::MISSING_CELL).map(|why| why.replace("\"\"", "\""))
        }
        // Parquet has no lines.
        ExportFormat::Parquet => None,
    }
}

fn record(format: ExportFormat, line: &[u8]) -> Line {
    let id = match format {
        ExportFormat::Json => line.strip_prefix(JSON_HEAD),
        ExportFormat::Csv if line.starts_with(CSV_HEAD) => return Line::Header,
        ExportFormat::Csv => Some(line),
        // Parquet has no lines.
        ExportFormat::Parquet => None,
    };
    let id = id.and_then(|rest| std::str::from_utf8(rest.get(..ID_CHARS)?).ok());
    match id.filter(|id| Id::parse(id).is_some()) {
        Some(id) => Line::Record(id.to_owned()),
        None => missing_of(format, line).map_or(Line::Message, Line::Missing),
    }
}

/// Progress bar on stderr over `total` records.
pub(crate) fn records_bar(total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {human_pos}/{human_len} records {eta}");
    ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Progress bar over the number of matching records; hidden without a terminal.
pub(crate) async fn records_bar_of(
    backend: &Backend,
    filters: &[(&str, Option<&str>)],
) -> Result<ProgressBar, CommandError> {
    if !std::io::stderr().is_terminal() {
        return Ok(ProgressBar::hidden());
    }
    let mut query = filters.to_vec();
    query.extend(["with_total", "exclude_payloads"].map(|name| (name, Some("true"))));
    query.push(("limit", Some("1")));
    let page = backend.get(&target(&["activity"], &query)).await?;
    let page = output::parse(page.json()?)?;
    Ok(records_bar(page.pointer("/total").and_then(Value::as_u64).unwrap_or_default()))
}

/// Maximum number of attempts to resume a stream without progress.
const MAX_RETRIES: u32 = 5;
/// Delay before each attempt.
const WAIT: Duration = Duration::from_secs(1);

/// Attempts since the last progress.
#[derive(Debug, Default)]
pub(super) struct Retries(u32);

impl Retries {
    /// Resets the counter after progress.
    pub(super) fn reset(&mut self) {
        self.0 = 0;
    }

    /// Waits before the next attempt. Returns `why` when the attempts are used up.
    pub(super) async fn next(&mut self, why: CommandError) -> Result<(), CommandError> {
        if self.0 == MAX_RETRIES {
            return Err(why);
        }
        self.0 += 1;
        tokio::time::sleep(WAIT).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn act_7_export_file_gets_its_final_name_when_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        fs::write(&path, "old").unwrap();
        let names = || fs::read_dir(folder.path()).unwrap().count();
        let mut sink = Sink::create(&path).unwrap();
        sink.out.write_all(b"new").unwrap();
        assert_eq!(names(), 2);
        drop(sink);
        assert_eq!((names(), fs::read(&path).unwrap()), (1, b"old".to_vec()), "interrupted");
        let mut sink = Sink::create(&path).unwrap();
        sink.out.write_all(b"new").unwrap();
        sink.finish().unwrap();
        assert_eq!((names(), fs::read(&path).unwrap()), (1, b"new".to_vec()));
        Sink::create(Path::new("/dev/null")).unwrap().finish().unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn act_7_existing_file_is_replaced_only_with_force() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("week.csv");
        assert_eq!(check_new(&path), Ok(()));
        fs::write(&path, "").unwrap();
        assert_eq!(check_new(&path), Ok(()), "an empty file, as mktemp creates it");
        fs::write(&path, "id,seq").unwrap();
        let refused = check_new(&path).unwrap_err().message;
        assert!(refused.contains("week.csv already exists") && refused.contains("--force"));
        assert_eq!(check_new(Path::new("/dev/null")), Ok(()));
        assert_eq!(check_new(Path::new("-")), Ok(()));
    }

    #[test]
    fn period_that_ends_before_it_starts_is_refused_by_its_flags() {
        let now = "2026-11-20T12:00:00Z".parse().unwrap();
        let of = |since, until| period(Some(since), Some(until), now);
        let refused = Err("--since must not be after --until".to_owned());
        assert_eq!(of("2d", "5d"), refused);
        assert_eq!(of("2026-11-16T12:00:00Z", "2026-11-16"), refused);
        let (since, until) = of("2026-11-16", "1h").unwrap();
        assert_eq!(since.as_deref(), Some("2026-11-16T00:00:00Z"));
        assert_eq!(until.as_deref(), Some("2026-11-20T11:00:00Z"));
        assert!(of("soon", "1h").unwrap_err().starts_with("--since 'soon'"));
        assert_eq!(period(None, None, now), Ok((None, None)));
    }

    #[test]
    fn export_summary_counts_records_if_the_format_allows_it() {
        let shown = draw(&json!({"file": "a.csv", "bytes": 10, "records": 1}));
        assert_eq!(shown, "1 record, 10 bytes in a.csv");
        assert_eq!(draw(&json!({"file": "a\u{1b}", "bytes": 0})), "0 bytes in a\\u{1b}");
        assert_eq!(ExportLines::new(ExportFormat::Parquet).records(), None);
    }

    const ONE: &str = "01KAJ2Z8Q4T5V6W7X8Y9Z0A1B2";
    const TWO: &str = "01KAJ2Z8Q4T5V6W7X8Y9Z0A1B3";

    fn check(format: ExportFormat, text: &str, records: &str, words: Option<&str>) {
        for cut in 0..=text.len() {
            let (one, two) = text.as_bytes().split_at(cut);
            let mut lines = ExportLines::new(format);
            let whole = [lines.push(one), lines.push(two)].concat();
            assert_eq!(String::from_utf8_lossy(&whole), records, "{cut}");
            assert_eq!((lines.last.as_deref(), lines.records()), (Some(TWO), Some(2)));
            assert_eq!(lines.restart().as_deref(), words, "{cut}");
            assert!(
                lines.push(format!("{ONE},x").as_bytes()).is_empty(),
                "incomplete line discarded"
            );
        }
    }

    #[test]
    fn complete_records_are_separated_from_truncated_ones_at_every_split() {
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

    #[test]
    fn missing_nodes_line_is_part_of_the_file() {
        let missing = lines::Missing::from([("b".to_owned(), "it said \"no\", twice".to_owned())]);
        let cell = lines::missing_cell(&missing).replace('"', "\"\"");
        for (format, text) in [
            (ExportFormat::Json, lines::missing_line(&missing, 0)),
            (ExportFormat::Csv, format!("\"{cell}\"\r\n")),
        ] {
            let mut lines = ExportLines::new(format);
            assert_eq!(String::from_utf8_lossy(&lines.push(text.as_bytes())), text);
            assert_eq!(lines.missing.as_deref(), Some("b: it said \"no\", twice"));
            assert_eq!((lines.last.clone(), lines.restart()), (None, None));
        }
    }
}
