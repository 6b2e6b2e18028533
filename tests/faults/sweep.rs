//! Every phase with every operation failing, at one place after the other, once or for good; a
//! table of what came of it.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mcpproxy::activity::{Activity, Config, StoreError, salvage, verify};

use crate::plan::{Op, Plan};
use crate::subject::{Phase, TASK};

/// How long a child has for all it does.
const ENDS_WITHIN: Duration = Duration::from_secs(90);
/// Places of each kind that the short sweep tries, in the middle of what there are.
const SHORT: u64 = 1;
/// The sweep ends with so many finds: each may have taken [`ENDS_WITHIN`].
const MOST_WRONG: usize = 20;
const BETWEEN: &str = "\n\n";
/// Set for the whole sweep: every n-th place is tried.
const EVERY: &str = "FAULTS_EVERY";

/// What came of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// Nothing failed: the operation is not done so often.
    NotReached,
    /// Nobody noticed, and nothing was lost.
    Unnoticed,
    /// It was told, and the log was written again by the same process.
    CameBack,
    /// It was told, and the next process wrote it again.
    NextStart,
    /// The process ended by itself; the next wrote the log again.
    Ended,
}

#[test]
fn wherever_the_disk_fails_nothing_acknowledged_is_lost_and_nothing_hangs() {
    let folder = tempfile::tempdir().unwrap();
    let shim = build(folder.path());
    let every = std::env::var(EVERY).ok().map(|every| every.parse::<u64>().unwrap());
    let mut table: BTreeMap<(Phase, Op), BTreeMap<Outcome, u64>> = BTreeMap::new();
    let mut wrong = Vec::new();
    println!("{:<10} {:<9} outcomes", "phase", "operation");
    for phase in Phase::ALL {
        for op in Op::ALL {
            let (nth, only) = (u64::MAX / 2, "");
            let unfailing = Run { shim: &shim, phase, op, error: 0, nth, times: 1, only };
            let (reached, kept) = unfailing.count();
            let step = every.unwrap_or_else(|| reached.div_ceil(SHORT)).max(1);
            for error in op.errors() {
                // At least one of each, however few there are.
                let first = (step / 2).min(reached / 2);
                for nth in (first..reached).step_by(step as usize) {
                    for times in [1, u64::MAX] {
                        let run = Run { shim: &shim, phase, op, error: *error, nth, times, only };
                        match run.outcome(kept) {
                            Ok(outcome) => {
                                let outcomes = table.entry((phase, op)).or_default();
                                *outcomes.entry(outcome).or_default() += 1;
                            }
                            Err(why) => wrong.push(format!("{run}: {why}")),
                        }
                        assert!(wrong.len() < MOST_WRONG, "{}", wrong.join(BETWEEN));
                    }
                }
            }
            // As it goes: all of it takes hours.
            if let Some(outcomes) = table.get(&(phase, op)) {
                println!("{:<10} {:<9} {outcomes:?}", format!("{phase:?}"), format!("{op:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(table.len() > 20, "too few operations were reached");
}

#[test]
fn a_disk_that_does_not_answer_is_told_and_holds_no_call_for_long() {
    let folder = tempfile::tempdir().unwrap();
    let shim = build(folder.path());
    let (phase, op) = (Phase::Stall, Op::Sync);
    let run = Run { shim: &shim, phase, op, error: 0, nth: 0, times: 0, only: "" };
    let (ended_well, said) = run.run(&self::folder()).unwrap();
    assert!(ended_well, "{said}");
    for expected in ["said the disk has not answered for", "refused the activity log", "back"] {
        assert!(said.lines().any(|line| line.starts_with(expected)), "{expected}: {said}");
    }
}

/// Compiles the shim.
pub(crate) fn build(folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/shim.c");
    let shim = folder.join("shim.so");
    let compiled = Command::new("cc")
        .args(["-O2", "-shared", "-fPIC", "-o"])
        .args([&shim, &source])
        .arg("-ldl")
        .status()
        .unwrap();
    assert!(compiled.success());
    shim
}

/// One child.
pub(crate) struct Run<'a> {
    pub(crate) shim: &'a Path,
    pub(crate) phase: Phase,
    pub(crate) op: Op,
    pub(crate) error: u32,
    pub(crate) nth: u64,
    pub(crate) times: u64,
    /// Only operations on files below this fail.
    pub(crate) only: &'a str,
}

impl std::fmt::Display for Run<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { phase, op, error, nth, times, .. } = self;
        write!(f, "{phase:?} {op:?} {error} {nth} {times}")
    }
}

impl Run<'_> {
    /// How many such operations there are in the phase, and how many records a salvage keeps in it.
    fn count(&self) -> (u64, u64) {
        let said = self.run(&folder()).unwrap().1;
        let counts = said.lines().filter_map(|line| line.strip_prefix("count "));
        let kept = said.split_once("kept: ").and_then(|(_, rest)| rest.split(',').next());
        let kept = kept.map_or(0, |kept| kept.parse().unwrap());
        assert!(self.phase != Phase::Salvage || kept > 100, "{said}");
        (counts.map(|n| n.parse::<u64>().unwrap()).sum(), kept)
    }

    /// What came of it, or what is wrong with it. A salvage keeps at least `kept` records.
    fn outcome(&self, kept: u64) -> Result<Outcome, String> {
        let dir = folder();
        let (ended_well, said) = self.run(&dir)?;
        let failed = Plan::open(&dir.path().join("plan")).failed();
        let has = |start: &str| said.lines().any(|line| line.starts_with(start));
        let acknowledged = said.lines().filter_map(|line| line.strip_prefix("acknowledged "));
        let acknowledged = acknowledged.map(|n| n.parse::<u64>().unwrap()).max().unwrap_or(0);
        let log = dir.path().join("files/log");
        if !ended_well {
            start_again(&log).map_err(|why| format!("{why}\n{said}"))?;
        }
        let report = verify::folder(&log, dir.path(), |_, _| {});
        let report = report.map_err(|error| format!("{error}\n{said}"))?;
        let least = if self.phase == Phase::Salvage { kept } else { acknowledged };
        if !report.is_sound() || report.last < least {
            return Err(format!("{report:?}\n{said}"));
        }
        match (failed, ended_well) {
            (0, true) => Ok(Outcome::NotReached),
            (_, true) if has("not back") && has("said ") => Ok(Outcome::NextStart),
            (_, true) if has("not back") => Err(format!("nobody was told\n{said}")),
            (_, true) if has("said ") => Ok(Outcome::CameBack),
            (_, true) => Ok(Outcome::Unnoticed),
            // Where memory ends, so may we.
            (_, false) if self.op == Op::Alloc => Ok(Outcome::Ended),
            (_, false) => Err(format!("it did not end well\n{said}")),
        }
    }

    /// Whether the child ended well, and what it said.
    pub(crate) fn run(&self, dir: &tempfile::TempDir) -> Result<(bool, String), String> {
        let (plan, files) = (dir.path().join("plan"), dir.path().join("files"));
        std::fs::create_dir(&files).unwrap();
        Plan::create(&plan);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "subject::child", "--nocapture", "--test-threads=1"])
            .env(TASK, self.to_string())
            .env("FAULT_PLAN", &plan)
            .env("FAULT_LOG", files.join("log"))
            .env("FAULT_DIR", files.join(self.only))
            .env("LD_PRELOAD", self.shim)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (out, err) = (reads(child.stdout.take()), reads(child.stderr.take()));
        let status = wait(&mut child);
        let said = format!("{}{}", out.join().unwrap(), err.join().unwrap());
        match status {
            Some(status) => Ok((status.success(), said)),
            None => Err(format!("it hangs\n{said}")),
        }
    }
}

/// What whoever operates it does after the process has ended: starts it, with `--salvage` where it is
/// told to.
fn start_again(log: &Path) -> Result<(), StoreError> {
    if let Err(error) =
        Activity::open(log, Config::default()).and_then(|(_, writer)| writer.close())
    {
        let StoreError::Damaged { .. } = error else { return Err(error) };
        salvage::salvage(log, 0)?;
        Activity::open(log, Config::default())?.1.close()?;
    }
    Ok(())
}

/// A folder in memory where there is one: a sweep opens hundreds of logs.
pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn reads<R: Read + Send + 'static>(from: Option<R>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = from.unwrap().read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    })
}

/// Waits for the end; `None` where it has to be brought about.
fn wait(child: &mut Child) -> Option<std::process::ExitStatus> {
    let deadline = Instant::now() + ENDS_WITHIN;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
}
