//! Process under test: prepares a log, arms the faults, runs one phase, disarms them, and prints the outcome.
//!
//! ```text
//! acknowledged N     every record up to N was acknowledged as durable
//! count N            number of operations of the kind in the phase
//! reported TEXT      error reported to the caller
//! salvaged TEXT      result of the salvage, including `kept: N`
//! lost N             number of unrecorded calls according to the log
//! back | not back    whether the same process can write the log afterwards
//! ```

use std::path::Path;
use std::time::{Duration, Instant};

use mcpproxy_activity::{
    Activity, Config, Draft, Filter, OnFailure, Page, Raw, Source, Status, StoreError, Text, Type,
    Writer, losses, salvage, verify,
};

use crate::plan::{Op, Plan};

/// Time limit for the log to recover once no operation fails any more; it retries every second. After a failed sync it
/// does not recover before the next start, so the whole time is waited.
const BACK_WITHIN: Duration = Duration::from_secs(5);
/// Time limit for reporting an unresponsive disk.
const REPORTED_WITHIN: Duration = Duration::from_secs(20);
/// Delay of the disk in [`Phase::Stall`].
const STALLS_MS: u32 = 8000;
/// Number of records in a phase's initial log: more than a full segment.
pub(crate) const BEFORE: u64 = 1100;
/// Maximum number of records in the retention phases.
const KEPT: u64 = 100;
/// Records per batch of the initial log.
const BATCH: usize = 100;
/// Records per acknowledgement.
const BURST: u64 = 10;
/// Minimum number of lost records in [`Phase::Lose`].
pub(crate) const LOSES: u64 = 100;
/// Capacity of the queue in the phases that lose records, in records.
const CAPACITY: usize = 50;
/// Time limit for losing records and saving their count.
const LOSES_WITHIN: Duration = Duration::from_secs(30);

/// Work of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Creates a log.
    Create,
    /// Opens a closed log.
    Start,
    /// Opens a log that was not closed.
    Recover,
    /// Writes records.
    Append,
    /// Removes old records and rewrites tables.
    Prune,
    /// As [`Self::Prune`], while a reader holds a snapshot.
    PruneRead,
    /// Closes a log.
    Stop,
    /// Salvages a damaged log.
    Salvage,
    /// Writes records to a slow disk.
    Stall,
    /// Writes records that are lost, while calls proceed.
    Lose,
    /// As [`Self::Lose`], and the process is killed meanwhile.
    LoseKilled,
    /// Opens, verifies and salvages a log with an unreadable file.
    Unreadable,
}

impl Phase {
    pub(crate) const ALL: [Self; 8] = [
        Self::Create,
        Self::Start,
        Self::Recover,
        Self::Append,
        Self::Prune,
        Self::PruneRead,
        Self::Stop,
        Self::Salvage,
    ];
}

/// Environment variable with the task of a child.
pub(crate) const TASK: &str = "FAULT_TASK";

#[test]
fn child() {
    let Ok(task) = std::env::var(TASK) else { return };
    let plan = Plan::open(Path::new(&std::env::var("FAULT_PLAN").unwrap()));
    let dir = std::env::var("FAULT_LOG").unwrap();
    let [phase, op, error, nth, times] = task.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{task}")
    };
    let phases = Phase::ALL.into_iter().chain([
        Phase::Stall,
        Phase::Lose,
        Phase::LoseKilled,
        Phase::Unreadable,
    ]);
    let phase = phases.into_iter().find(|it| format!("{it:?}") == phase).unwrap();
    let fault = Fault {
        plan,
        op: Op::named(op).unwrap(),
        error: error.parse().unwrap(),
        nth: nth.parse().unwrap(),
        times: times.parse().unwrap(),
    };
    println!();
    run(phase, Path::new(&dir), &fault);
}

struct Fault {
    plan: Plan,
    op: Op,
    error: u32,
    nth: u64,
    times: u64,
}

impl Fault {
    /// Runs `work` while operations fail.
    fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = self.plan.seen(self.op);
        self.plan.arm(self.op, self.error, self.nth, self.times);
        let result = work();
        self.plan.disarm();
        println!("count {}", self.plan.seen(self.op) - before);
        result
    }
}

fn run(phase: Phase, dir: &Path, fault: &Fault) {
    match phase {
        Phase::Create => begin(dir, fault),
        Phase::Start => {
            prepared(dir, BEFORE);
            begin(dir, fault);
        }
        Phase::Recover => {
            killed(dir, BEFORE);
            begin(dir, fault);
        }
        Phase::Append => {
            let (activity, writer) = open(dir, 0).unwrap();
            let mut next = append(&activity, 1, BURST).unwrap();
            fault.during(|| {
                for _ in 0..30 {
                    match append(&activity, next, BURST) {
                        Ok(after) => next = after,
                        Err(why) => {
                            println!("reported {why}");
                            break;
                        }
                    }
                }
            });
            end(&activity, writer);
        }
        Phase::Prune | Phase::PruneRead => {
            prepared(dir, BEFORE);
            let (activity, writer) = open(dir, KEPT).unwrap();
            let reader = (phase == Phase::PruneRead).then(|| activity.view().unwrap());
            let _last = fault.during(|| {
                if let Err(error) = activity.prune() {
                    println!("reported {error}");
                }
                append(&activity, BEFORE + 1, BURST).map_err(|why| println!("reported {why}"))
            });
            if let Some(reader) = reader {
                // The reader can still read its snapshot, or gets an error.
                match reader.list(&Filter::default(), &Page { limit: 5, ..Page::default() }) {
                    Ok(listing) => assert!(listing.records.len() <= 5),
                    Err(error) => println!("reported {error}"),
                }
            }
            end(&activity, writer);
        }
        Phase::Stop => {
            let (activity, writer) = open(dir, 0).unwrap();
            append(&activity, 1, BURST).unwrap();
            match fault.during(|| writer.close()) {
                Ok(()) => println!("closed"),
                Err(error) => println!("reported {error}"),
            }
            drop(activity);
            begin_again(dir);
        }
        Phase::Stall => {
            let (activity, writer) = open(dir, 0).unwrap();
            append(&activity, 1, BURST).unwrap();
            fault.plan.delay(Op::Sync, STALLS_MS);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            let runtime = runtime.unwrap();
            drop(runtime.block_on(activity.reserve()).unwrap().submit(numbered(BURST + 1)));
            let deadline = Instant::now() + REPORTED_WITHIN;
            let failed = loop {
                assert!(Instant::now() < deadline, "the failure is not reported");
                match activity.health().failed {
                    Some(failed) => break failed,
                    None => std::thread::park_timeout(Duration::from_millis(50)),
                }
            };
            println!("reported {failed}");
            println!("refused {}", runtime.block_on(activity.reserve()).unwrap_err());
            fault.plan.disarm();
            end(&activity, writer);
        }
        Phase::Lose | Phase::LoseKilled => {
            let on_failure = OnFailure::Continue;
            let config = Config { on_failure, queue_records: CAPACITY, ..Config::default() };
            let (activity, writer) = Activity::open(dir, config).unwrap();
            append(&activity, 1, BURST).unwrap();
            fault.plan.arm(fault.op, fault.error, 0, u64::MAX);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            let runtime = runtime.unwrap();
            let deadline = Instant::now() + LOSES_WITHIN;
            while activity.health().lost < LOSES {
                assert!(Instant::now() < deadline, "nothing is lost");
                drop(runtime.block_on(activity.reserve()).unwrap().submit(numbered(BURST + 1)));
            }
            let lost = activity.health().lost;
            while losses::LossTally::read(dir).unwrap().0.total < lost {
                assert!(Instant::now() < deadline, "the count is not saved");
                std::thread::park_timeout(Duration::from_millis(5));
            }
            println!("lost {lost}");
            if phase == Phase::LoseKilled {
                std::process::exit(0);
            }
            fault.plan.disarm();
            end(&activity, writer);
            println!("lost {}", activity.health().lost);
        }
        Phase::Unreadable => {
            prepared(dir, BEFORE);
            std::fs::remove_file(dir.join("seal")).unwrap();
            let scratch = dir.with_file_name("scratch");
            std::fs::create_dir(&scratch).unwrap();
            fault.plan.arm(fault.op, fault.error, 0, u64::MAX);
            println!("open {:?}", open(dir, 0).map(drop));
            println!("verify {:?}", verify::folder(dir, &scratch, |_, _| {}));
            println!("salvaged {:?}", salvage::salvage(dir, 0));
            fault.plan.disarm();
            begin_again(dir);
        }
        Phase::Salvage => {
            killed(dir, BEFORE);
            let journal = journal(dir);
            let mut bytes = std::fs::read(&journal).unwrap();
            let middle = bytes.iter().rposition(|byte| *byte != 0).unwrap() / 2;
            bytes[middle] ^= 1;
            std::fs::write(&journal, bytes).unwrap();
            match fault.during(|| salvage::salvage(dir, 0)) {
                Ok(salvaged) => println!("salvaged {salvaged:?}"),
                Err(error) => {
                    println!("reported {error}");
                    println!("salvaged {:?}", salvage::salvage(dir, 0).unwrap());
                }
            }
            begin_again(dir);
        }
    }
}

/// Creates a closed log with this number of records.
fn prepared(dir: &Path, records: u64) {
    let (activity, writer) = open(dir, 0).unwrap();
    // In several batches, because damage loses the whole batch that it affects.
    (1..=records).step_by(BATCH).for_each(|from| drop(append(&activity, from, BATCH as u64)));
    writer.close().unwrap();
}

/// Creates a log whose process was killed, with this number of records in its journal only.
fn killed(dir: &Path, records: u64) {
    let live = tempfile::tempdir().unwrap();
    let live = live.path().join("log");
    let (activity, writer) = open(&live, 0).unwrap();
    (1..=records).step_by(BATCH).for_each(|from| drop(append(&activity, from, BATCH as u64)));
    copy(&live, dir);
    writer.close().unwrap();
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy(&path, &target),
            false => drop(std::fs::copy(&path, target).unwrap()),
        }
    }
}

fn journal(dir: &Path) -> std::path::PathBuf {
    let entries = std::fs::read_dir(dir.join("db")).unwrap();
    let mut journals = entries.map(|entry| entry.unwrap().path());
    journals.find(|path| path.extension().is_some_and(|it| it == "jnl")).unwrap()
}

fn open(dir: &Path, max_records: u64) -> Result<(Activity, Writer), StoreError> {
    Activity::open(
        dir,
        Config { max_records, min_retention: std::time::Duration::ZERO, ..Config::default() },
    )
}

/// Opens a log while operations fail, and again afterwards if that failed.
fn begin(dir: &Path, fault: &Fault) {
    match fault.during(|| open(dir, 0)) {
        Ok((activity, writer)) => end(&activity, writer),
        Err(error) => {
            println!("reported {error}");
            begin_again(dir);
        }
    }
}

fn begin_again(dir: &Path) {
    match open(dir, 0) {
        Ok((activity, writer)) => end(&activity, writer),
        Err(error) => println!("not back: {error}"),
    }
}

fn numbered(n: u64) -> Draft {
    let mut draft = Draft::new(Type::ToolCall, Source::Mcp, Status::Success);
    draft.set(Text::RequestId, &n.to_string());
    draft.keep(Raw::Response, n.to_string().repeat(50).as_bytes(), 1024);
    draft
}

/// Submits records and waits until they are durable. Returns the next number.
fn append(activity: &Activity, from: u64, records: u64) -> Result<u64, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    for n in from..from + records {
        let slot = runtime.block_on(activity.reserve()).map_err(|refused| refused.to_string())?;
        slot.submit(numbered(n));
    }
    activity.flush().map_err(|refused| refused.to_string())?;
    println!("acknowledged {}", activity.health().durable_seq);
    Ok(from + records)
}

/// Checks whether records can be written again once nothing fails, and closes the log.
fn end(activity: &Activity, writer: Writer) {
    let deadline = Instant::now() + BACK_WITHIN;
    let result = loop {
        match append(activity, 1_000_000, 1) {
            Ok(_) => break Ok(()),
            Err(why) if Instant::now() > deadline => break Err(why),
            Err(_) => std::thread::park_timeout(Duration::from_millis(50)),
        }
    };
    match result {
        Ok(()) => println!("back"),
        Err(why) => println!("not back: {why}"),
    }
    if let Err(error) = writer.close() {
        println!("reported {error}");
    }
}
