//! `mcpproxy activity export`: records into a file, as they come, with a progress bar.
//!
//! The file takes its name once it is whole. An export that breaks off is gone on with after the last
//! record that came whole; where that cannot be done, as with a table, nothing is left behind.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use futures_util::TryStreamExt;
use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::export_lines::{ExportFormat, ExportLines};
use super::filters::{filters, times};
use super::progress::records_bar_of;
use super::retry::Retries;
use crate::cli::args::ActivityExport;
use crate::cli::backend::{Backend, target};
use crate::cli::error::CommandError;
use crate::cli::json_pointer::text;
use crate::cli::output::Output;
use crate::cli::terminal_safe::line;
use crate::os::private;

/// What an unfinished file has at the end of its name.
const PARTIAL: &str = ".partial";

/// Writes the records that the filters mean.
pub(super) async fn run(
    flags: &ActivityExport,
    backend: &Backend,
    output: &Output,
) -> Result<(), CommandError> {
    let (since, until) = times(&flags.filters)?;
    let query = filters(&flags.filters, since.as_deref(), until.as_deref());
    let bar = match ExportFormat::of(&flags.format) {
        ExportFormat::Json | ExportFormat::Csv => records_bar_of(backend, &query).await?,
        // How many records came is not seen from outside.
        ExportFormat::Parquet => ProgressBar::hidden(),
    };
    let mut wanted = query;
    wanted.push(("format", Some(flags.format.as_str())));
    if flags.file == Path::new("-") {
        let mut out = std::io::stdout().lock();
        let written = copy(backend, &wanted, flags, &bar, |bytes| match out.write_all(bytes) {
            // The reader's choice.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
            written => written.map(|()| true),
        });
        written.await?;
        bar.finish_and_clear();
        return Ok(());
    }
    let failed = |error: std::io::Error| unwritten(&flags.file, &error);
    let mut sink = Sink::create(&flags.file).map_err(failed)?;
    let write = |bytes: &[u8]| sink.out.write_all(bytes).map(|()| true);
    let bytes = copy(backend, &wanted, flags, &bar, write).await?;
    sink.finish().map_err(failed)?;
    bar.finish_and_clear();
    let done = json!({"file": flags.file.display().to_string(), "bytes": bytes});
    output.print(&done.to_string(), draw)
}

/// Writes an export out, taking it up again where it breaks off; how many bytes it has. `write`
/// says false when no more is wanted.
async fn copy(
    backend: &Backend,
    wanted: &[(&str, Option<&str>)],
    flags: &ActivityExport,
    bar: &ProgressBar,
    mut write: impl FnMut(&[u8]) -> std::io::Result<bool>,
) -> Result<usize, CommandError> {
    let (mut tries, mut lines, mut bytes) =
        (Retries::default(), ExportLines::new(ExportFormat::of(&flags.format)), 0);
    let mut after: Option<String> = None;
    loop {
        let mut query = wanted.to_vec();
        query.push(("after", after.as_deref()));
        let broken = match backend.stream(&target(&["activity", "export"], &query), None).await {
            // Only what has begun is gone on with.
            Err(failure) if after.is_none() => return Err(failure),
            Err(failure) => failure,
            Ok(mut chunks) => loop {
                let chunk = match chunks.try_next().await {
                    Ok(Some(chunk)) => chunk,
                    Ok(None) => return Ok(bytes),
                    Err(failure) => break failure,
                };
                let whole = lines.push(&chunk);
                advance(bar, &whole);
                bytes += whole.len();
                if !write(&whole).map_err(|error| unwritten(&flags.file, &error))? {
                    return Ok(bytes);
                }
                if !whole.is_empty() {
                    tries.came();
                }
            },
        };
        // Why, where it said so.
        let broken = match lines.restart() {
            Some(words) => CommandError::failed(format!("{}: {words}", broken.message)),
            None => broken,
        };
        after = lines.last.clone();
        if after.is_none() && bytes > 0 {
            // Without a record to go on after the header would come twice.
            return Err(broken);
        }
        tries.next(broken).await?;
    }
}

fn draw(done: &Value) -> String {
    format!("{} bytes in {}", text(done, "/bytes"), line(&text(done, "/file")))
}

/// Lines stand for records; a line end within a cell of CSV makes the bar run ahead a little.
fn advance(bar: &ProgressBar, chunk: &[u8]) {
    if !bar.is_hidden() {
        bar.inc(memchr::memchr_iter(b'\n', chunk).count() as u64);
    }
}

fn unwritten(file: &Path, error: &std::io::Error) -> CommandError {
    CommandError::failed(format!("cannot write {}: {error}", file.display()))
}

/// The file under way. Dropped before its end, it is removed.
struct Sink {
    out: BufWriter<File>,
    /// Where it is, and what it will be called; none for what is not a file of its own, like a pipe.
    names: Option<(PathBuf, PathBuf)>,
}

impl Sink {
    /// Only its owner can read it: arguments and answers are in it.
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
            // What is left is named as unfinished.
            let _ = fs::remove_file(partial);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn act_7_a_file_takes_its_name_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        fs::write(&path, "old").unwrap();
        let names = || fs::read_dir(folder.path()).unwrap().count();
        let mut sink = Sink::create(&path).unwrap();
        sink.out.write_all(b"new").unwrap();
        assert_eq!(names(), 2);
        drop(sink);
        assert_eq!((names(), fs::read(&path).unwrap()), (1, b"old".to_vec()), "broken off");
        let mut sink = Sink::create(&path).unwrap();
        sink.out.write_all(b"new").unwrap();
        sink.finish().unwrap();
        assert_eq!((names(), fs::read(&path).unwrap()), (1, b"new".to_vec()));
        Sink::create(Path::new("/dev/null")).unwrap().finish().unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
