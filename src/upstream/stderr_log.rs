//! Stderr of child processes, stored on disk as a ring of two files per server.
//!
//! One thread redacts and writes the lines of a bounded queue, so that children and calls never wait for a disk. Lines
//! that do not fit into the queue or on the disk are counted, and the count is written in their place. When a file is
//! full, the next one is started and the oldest is removed. File numbers only grow, so a [`LogPlace`] stays valid.
//! Files of removed servers are retained for some time, because they may explain the removal.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use parking_lot::Mutex;

use mcpproxy_activity::redact::Redactor;
use mcpproxy_policy::tool;
use mcpproxy_runtime::os::{priority, private};
use mcpproxy_runtime::secrets::Secrets;

/// Maximum size of a file, in bytes.
pub(crate) const FILE_BYTES: u64 = 1024 * 1024;
/// Maximum number of open files; the most recently active servers keep theirs open.
const MAX_OPEN_FILES: usize = 64;
/// Number of files per server.
const FILES: usize = 2;
/// Capacity of the queue, in lines of all servers.
const QUEUE_LINES: usize = 1024;
/// Maximum size of a line with its time, in bytes.
const LINE_BYTES: usize = 16 * 1024;
/// Delay after a failed write.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Maximum wait for the remaining lines at shutdown.
const FINISH_WAIT: Duration = Duration::from_secs(2);
/// Maximum number of lines per read.
pub const MAX_LINES: usize = 1000;
const EXTENSION: &str = "log";

/// Writer thread and its queue.
#[derive(Debug, Default)]
pub struct StderrLog {
    folder: PathBuf,
    queue: Option<SyncSender<Entry>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Queue handle for the lines of one server. The default handle drops them.
#[derive(Debug, Default)]
pub(super) struct ServerLines {
    queue: Option<SyncSender<Entry>>,
    server: Arc<str>,
    /// Number of lines dropped since the last queued one.
    lost: AtomicU64,
}

/// Queued line.
#[derive(Debug)]
struct Entry {
    server: Arc<str>,
    secrets: Arc<Secrets>,
    at: SystemTime,
    words: Box<[u8]>,
    cut: bool,
    /// Number of lines dropped before this one.
    lost: u64,
}

impl StderrLog {
    /// Starts the writer. `folder` is created with the first line. If no thread can be started, nothing is stored.
    pub fn start(folder: PathBuf, redactor: Redactor) -> Self {
        let (queue, lines) = sync_channel(QUEUE_LINES);
        let writer = Rings::new(folder.clone(), redactor);
        let thread = std::thread::Builder::new().name("stderr".into()).spawn(move || {
            priority::lower();
            writer.run(&lines);
        });
        match thread {
            Ok(thread) => Self { folder, queue: Some(queue), thread: Mutex::new(Some(thread)) },
            Err(error) => {
                tracing::warn!(%error, "the stderr of servers is not stored: no writer thread");
                Self { folder, ..Self::default() }
            }
        }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Queue handle for the lines of a server.
    pub(super) fn of(&self, server: &Arc<str>) -> ServerLines {
        let (queue, server) = (self.queue.clone(), Arc::clone(server));
        ServerLines { queue, server, lost: AtomicU64::new(0) }
    }

    /// Waits, for a limited time, until the queue is written. The producers must have ended.
    pub(super) async fn finish(&self) {
        let Some(thread) = self.thread.lock().take() else { return };
        let start = Instant::now();
        let mut is_sent = false;
        while !thread.is_finished() && start.elapsed() < FINISH_WAIT {
            let queue = self.queue.as_ref().filter(|_| !is_sent);
            is_sent |= queue.is_some_and(|queue| queue.try_send(Entry::end()).is_ok());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        if thread.is_finished() {
            let _ = thread.join();
        }
    }
}

impl ServerLines {
    /// Enqueues a line, or counts it if the queue is full. Never blocks.
    pub(super) fn keep(&self, secrets: &Arc<Secrets>, words: &[u8], cut: bool) {
        let Some(queue) = &self.queue else { return };
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let entry = Entry {
            server: Arc::clone(&self.server),
            secrets: Arc::clone(secrets),
            at: SystemTime::now(),
            words: words.into(),
            cut,
            lost,
        };
        if queue.try_send(entry).is_err() {
            self.lost.fetch_add(lost + 1, Ordering::Relaxed);
        }
    }
}

impl Entry {
    /// End marker of the queue.
    fn end() -> Self {
        let (server, words) = (Arc::from(""), Box::from([]));
        Self {
            server,
            secrets: Arc::default(),
            at: SystemTime::UNIX_EPOCH,
            words,
            cut: false,
            lost: 0,
        }
    }
}

/// Files of all servers.
struct Rings {
    folder: PathBuf,
    redactor: Redactor,
    all: HashMap<Arc<str>, Ring>,
    /// Number of open files.
    open: usize,
    /// Number of lines written so far.
    written: u64,
}

/// Files of one server.
#[derive(Default)]
struct Ring {
    number: u64,
    file: Option<File>,
    size: u64,
    lost: u64,
    /// Sequence number of the server's last line.
    used: u64,
    refused: Option<Instant>,
    /// Whether the last line may be incomplete.
    is_torn: bool,
}

impl Rings {
    fn new(folder: PathBuf, redactor: Redactor) -> Self {
        Self { folder, redactor, all: HashMap::new(), open: 0, written: 0 }
    }

    fn run(mut self, lines: &Receiver<Entry>) {
        for entry in lines {
            if entry.server.is_empty() {
                return;
            }
            self.keep(&entry);
        }
    }

    /// Writes a line, or counts it.
    fn keep(&mut self, entry: &Entry) {
        let line = self.line(entry);
        self.written += 1;
        let ring = self.all.entry(Arc::clone(&entry.server)).or_default();
        ring.lost += entry.lost;
        ring.used = self.written;
        let was_open = ring.file.is_some();
        ring.put(&self.folder, &entry.server, entry.at, &line);
        self.open += usize::from(ring.file.is_some());
        self.open -= usize::from(was_open);
        if self.open > MAX_OPEN_FILES {
            self.close_one();
        }
    }

    /// Closes the file of the least recently active server; its next line reopens it.
    fn close_one(&mut self) {
        let open = self.all.values_mut().filter(|ring| ring.file.is_some());
        if let Some(ring) = open.min_by_key(|ring| ring.used) {
            ring.file = None;
            self.open -= 1;
        }
    }

    /// Redacts a line and removes its control characters.
    fn line(&self, entry: &Entry) -> String {
        let masked = entry.secrets.mask(&entry.words, entry.cut);
        let visible = |letter: &char| !letter.is_control() || *letter == '\t';
        let line: String = String::from_utf8_lossy(&masked).chars().filter(visible).collect();
        // Removed characters may have hidden a secret.
        let masked = entry.secrets.mask(line.as_bytes(), entry.cut);
        let line = String::from_utf8_lossy(&masked);
        let mut line = self.redactor.text(line.trim_end(), entry.cut).into_owned();
        if line.len() > LINE_BYTES {
            let end = (0..=LINE_BYTES).rev().find(|end| line.is_char_boundary(*end));
            line.truncate(end.unwrap_or_default());
        }
        line
    }
}

impl Ring {
    /// Writes a line, or counts it.
    fn put(&mut self, folder: &Path, server: &str, at: SystemTime, line: &str) {
        if self.refused.is_some_and(|refused| refused.elapsed() < RETRY_AFTER) {
            self.lost += 1;
            return;
        }
        let written = self.write(folder, server, at, line);
        self.refused = written.is_err().then(Instant::now);
        if let Err(error) = written {
            (self.file, self.is_torn) = (None, true);
            self.lost += 1;
            tracing::debug!(server, %error, "a stderr line was not stored");
        }
    }

    fn write(&mut self, folder: &Path, server: &str, at: SystemTime, line: &str) -> io::Result<()> {
        if self.file.is_some() && self.size >= FILE_BYTES {
            self.file = None;
            self.number += 1;
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                private::folder(folder)?;
                let there = numbers(folder, server)?;
                let newest = there.last().copied().unwrap_or_default();
                self.number = self.number.max(newest);
                let path = path(folder, server, self.number);
                // The last line of a crashed writer may lack its line end.
                let mut file = private::options().append(true).create(true).open(&path)?;
                self.size = file.metadata()?.len();
                if self.size >= FILE_BYTES {
                    self.number += 1;
                    let path = self::path(folder, server, self.number);
                    file = private::options().append(true).create(true).open(path)?;
                    self.size = 0;
                }
                let kept = self.number.saturating_sub(FILES as u64 - 1);
                for old in there.into_iter().filter(|number| *number < kept) {
                    fs::remove_file(self::path(folder, server, old))?;
                }
                self.is_torn |= self.size > 0;
                none.insert(file)
            }
        };
        let at = Timestamp::try_from(at).unwrap_or(Timestamp::UNIX_EPOCH);
        let mut text = String::new();
        if self.is_torn {
            text.push('\n');
        }
        if self.lost > 0 {
            text.push_str(&format!("{at:.3} ({} lines were lost)\n", self.lost));
        }
        text.push_str(&format!("{at:.3} {line}\n"));
        file.write_all(text.as_bytes())?;
        self.size += text.len() as u64;
        (self.lost, self.is_torn) = (0, false);
        Ok(())
    }
}

/// Position between two lines of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPlace {
    file: u64,
    offset: u64,
}

impl fmt::Display for LogPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.file, self.offset)
    }
}

/// Error for a text that is not a [`LogPlace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a position from an earlier response")]
pub struct NoLogPlace;

impl FromStr for LogPlace {
    type Err = NoLogPlace;

    fn from_str(text: &str) -> Result<Self, NoLogPlace> {
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| digits).ok_or(NoLogPlace)
        };
        let (file, offset) = text.split_once('-').ok_or(NoLogPlace)?;
        Ok(Self { file: number(file)?, offset: number(offset)? })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptLine {
    /// Time in RFC 3339.
    pub time: String,
    /// Redacted text.
    pub line: String,
}

/// Stored lines in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptLines {
    pub lines: Vec<KeptLine>,
    /// Position after the last line.
    pub next: LogPlace,
}

/// Reads at most `max` lines of a server: the first ones after `after`, or the last ones if it is not given.
pub fn read(
    folder: &Path,
    server: &str,
    after: Option<LogPlace>,
    max: usize,
) -> io::Result<KeptLines> {
    let mut kept = KeptLines { lines: Vec::new(), next: after.unwrap_or_default() };
    let from = after.unwrap_or_default();
    let there = match numbers(folder, server) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        there => there?,
    };
    let mut places = Vec::new();
    for number in there.into_iter().filter(|number| *number >= from.file) {
        let mut offset = if number == from.file { from.offset } else { 0 };
        let text = match part(&path(folder, server, number), offset) {
            // Removed in the meantime; newer files exist.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            text => text?,
        };
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            // The last line may be incomplete.
            let Some(whole) = line.strip_suffix(b"\n") else { break };
            offset += line.len() as u64;
            let whole = String::from_utf8_lossy(whole);
            let split = whole.split_once(' ');
            let timed = split.filter(|(time, _)| time.parse::<Timestamp>().is_ok());
            if let Some((time, line)) = timed {
                let (time, line) = (time.to_owned(), line.to_owned());
                kept.lines.push(KeptLine { time, line });
                places.push(LogPlace { file: number, offset });
            }
        }
        kept.next = LogPlace { file: number, offset };
    }
    if kept.lines.len() > max {
        match after {
            None => {
                kept.lines.drain(..kept.lines.len() - max);
            }
            Some(_) => {
                kept.lines.truncate(max);
                let last = max.checked_sub(1).and_then(|last| places.get(last));
                kept.next = last.copied().unwrap_or(from);
            }
        }
    }
    Ok(kept)
}

/// Numbers of a server's files, in order.
fn numbers(folder: &Path, server: &str) -> io::Result<Vec<u64>> {
    let stem = tool::server_file_stem(server);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        let number = name.strip_prefix(&*stem).and_then(|rest| rest.strip_prefix('.'));
        let number = number.and_then(|rest| rest.strip_suffix(EXTENSION)?.strip_suffix('.'));
        found.extend(number.and_then(|number| number.parse::<u64>().ok()));
    }
    found.sort_unstable();
    Ok(found)
}

fn path(folder: &Path, server: &str, number: u64) -> PathBuf {
    folder.join(format!("{}.{number}.{EXTENSION}", tool::server_file_stem(server)))
}

/// Content of a file starting at `offset`, up to the maximum file size.
fn part(path: &Path, offset: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES + 2 * LINE_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Retention period for files of removed servers.
pub const KEPT_AFTER: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Removes old files that do not belong to any of `servers`. Blocks. If a file cannot be removed, the next call tries
/// again.
pub fn forget<'s>(folder: &Path, servers: impl IntoIterator<Item = &'s str>, now: SystemTime) {
    let stems: HashSet<_> = servers.into_iter().map(tool::server_file_stem).collect();
    let is_of_nobody = |name: &str| {
        let stem = name.strip_suffix(EXTENSION).and_then(|rest| rest.strip_suffix('.'));
        let stem = stem.and_then(|rest| rest.rsplit_once('.'));
        stem.is_some_and(|(stem, number)| number.parse::<u64>().is_ok() && !stems.contains(stem))
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let written = entry.metadata().and_then(|metadata| metadata.modified());
        let age = written.ok().and_then(|written| now.duration_since(written).ok());
        if age.is_some_and(|age| age > KEPT_AFTER)
            && is_of_nobody(&entry.file_name().to_string_lossy())
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn rings(folder: &Path) -> Rings {
        Rings::new(folder.to_owned(), Redactor::default())
    }

    fn put(ring: &mut Ring, folder: &Path, line: &str) {
        ring.put(folder, "s", SystemTime::UNIX_EPOCH, line);
    }

    fn lines(folder: &Path, after: Option<LogPlace>, max: usize) -> (Vec<String>, LogPlace) {
        let kept = read(folder, "s", after, max).unwrap();
        (kept.lines.into_iter().map(|line| line.line).collect(), kept.next)
    }

    #[test]
    fn ring_keeps_two_private_files_of_bounded_size() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("stderr");
        let mut ring = Ring::default();
        let long = "x".repeat(64 * 1024);
        for number in 0..100 {
            put(&mut ring, &folder, &format!("{number} {long}"));
        }
        let numbers = numbers(&folder, "s").unwrap();
        assert_eq!(numbers.len(), FILES);
        for number in numbers {
            let metadata = fs::metadata(path(&folder, "s", number)).unwrap();
            assert!(metadata.len() < FILE_BYTES + 70 * 1024, "{}", metadata.len());
            assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        }
        let (last, _) = lines(&folder, None, 1);
        assert!(last[0].starts_with("99 "));
        // A new writer continues the last file.
        let mut ring = Ring::default();
        put(&mut ring, &folder, "again");
        assert_eq!(lines(&folder, None, 1).0, ["again"]);
    }

    #[test]
    fn reader_resumes_at_its_position_and_skips_incomplete_lines() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path();
        assert_eq!(lines(&folder.join("none"), None, 10), (vec![], LogPlace::default()));
        let mut ring = Ring::default();
        ["a", "b", "c"].iter().for_each(|line| put(&mut ring, folder, line));
        let (last, end) = lines(folder, None, 2);
        assert_eq!(last, ["b", "c"]);
        assert_eq!(lines(folder, Some(end), 10), (vec![], end));
        assert_eq!(end.to_string().parse(), Ok(end));
        let (first, next) = lines(folder, Some(LogPlace::default()), 2);
        assert_eq!(
            (first.as_slice(), lines(folder, Some(next), 2).0.as_slice()),
            (&["a".to_owned(), "b".into()][..], &["c".to_owned()][..])
        );
        let mut file = private::options().append(true).open(path(folder, "s", 0)).unwrap();
        file.write_all(b"1970-01-01T00:00:00.000Z half").unwrap();
        assert_eq!(lines(folder, Some(end), 10).0, [""; 0]);
        let mut ring = Ring::default();
        put(&mut ring, folder, "d");
        assert_eq!(lines(folder, Some(end), 10).0, ["half", "d"]);
        for bad in ["", "1", "-1", "1-", "+1-2", "a-b"] {
            assert!(bad.parse::<LogPlace>().is_err(), "{bad}");
        }
    }

    #[test]
    fn failed_writes_are_counted_in_the_log() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("stderr");
        fs::write(&folder, "a file is in the way").unwrap();
        let mut ring = Ring::default();
        ["a", "b", "c"].iter().for_each(|line| put(&mut ring, &folder, line));
        assert_eq!(ring.lost, 3);
        fs::remove_file(&folder).unwrap();
        ring.refused = None;
        put(&mut ring, &folder, "d");
        assert_eq!(lines(&folder, None, 10).0, ["(3 lines were lost)", "d"]);
    }

    #[test]
    fn most_recently_active_servers_keep_their_files_open() {
        let home = tempfile::tempdir().unwrap();
        let mut rings = rings(home.path());
        let mut say = |server: &str, words: &str| {
            let words = words.as_bytes().into();
            rings.keep(&Entry { server: server.into(), words, ..Entry::end() });
            let open = rings.all.iter().filter(|(_, ring)| ring.file.is_some());
            let open: Vec<_> = open.map(|(name, _)| name.to_string()).collect();
            assert!(open.len() == rings.open && open.len() <= MAX_OPEN_FILES, "{}", open.len());
            open
        };
        say("s", "first");
        for number in 0..MAX_OPEN_FILES {
            say(&format!("other-{number}"), "x");
        }
        let open = say("other-0", "x");
        assert!(!open.contains(&"s".to_owned()), "least recently active");
        let open = say("s", "again");
        assert!(open.contains(&"s".to_owned()) && !open.contains(&"other-1".to_owned()));
        assert_eq!(lines(home.path(), None, 10).0, ["first", "again"]);
    }

    #[test]
    fn secrets_and_control_characters_are_removed() {
        let secrets = Arc::new(Secrets::new(["s3cr3t-token".to_owned()]));
        let entry = |words: &[u8], cut| Entry {
            words: words.into(),
            secrets: secrets.clone(),
            cut,
            ..Entry::end()
        };
        let rings = rings(Path::new(""));
        for (words, cut, expected) in [
            (&b"a s3cr3t-token\tb\x1b[31m"[..], false, "a [redacted]\tb[31m"),
            (b"a s3cr\x003t-token", false, "a [redacted]"),
            (b"end s3cr3t-t", true, "end [redacted]"),
        ] {
            assert_eq!(rings.line(&entry(words, cut)), expected);
        }
        let key = concat!("ghp_", "0123456789abcdefghijABCDEFGHIJ012345");
        let line = rings.line(&entry(format!("token is {key}").as_bytes(), false));
        assert!(!line.contains(key), "credentials are recognized by shape: {line}");
    }

    #[tokio::test]
    async fn producers_never_block_and_finish_writes_the_queue() {
        let home = tempfile::tempdir().unwrap();
        let log = StderrLog::start(home.path().to_owned(), Redactor::default());
        let server = log.of(&"s".into());
        for number in 0..10 * QUEUE_LINES {
            server.keep(&Arc::default(), number.to_string().as_bytes(), false);
        }
        log.finish().await;
        let (read, _) = lines(home.path(), None, 20 * QUEUE_LINES);
        let lost = |line: &String| -> u64 {
            let words = line.strip_prefix('(').and_then(|rest| rest.split_once(' '));
            words.map_or(0, |(count, _)| count.parse().unwrap())
        };
        let counted: u64 = read.iter().map(lost).sum();
        let written = read.iter().filter(|line| lost(line) == 0).count() as u64;
        let waiting = server.lost.load(Ordering::Relaxed);
        assert_eq!(
            written + counted + waiting,
            10 * QUEUE_LINES as u64,
            "every lost line is counted"
        );
    }

    #[test]
    fn only_old_files_of_removed_servers_are_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let [gone, here] = ["gone", "here"].map(tool::server_file_stem);
        let kept = [format!("{here}.1.log"), format!("{gone}.log"), "notes.txt".to_owned()];
        let old = [format!("{gone}.1.log"), format!("{gone}.2.log")];
        for name in kept.iter().chain(&old) {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let left = || {
            let entries = fs::read_dir(folder.path()).unwrap().flatten();
            entries.map(|it| it.file_name().into_string().unwrap()).collect::<BTreeSet<_>>()
        };
        let now = SystemTime::now();
        forget(folder.path(), ["here"], now + KEPT_AFTER / 2);
        assert_eq!(left().len(), 5);
        forget(folder.path(), ["here"], now + KEPT_AFTER * 2);
        assert_eq!(left(), BTreeSet::from(kept));
        forget(&folder.path().join("none"), [], now);
    }
}
