//! Sweep over phases and operations: each operation fails at each position, once or permanently. Prints a table of
//! outcomes.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mcpproxy_activity::{Activity, Config, StoreError, salvage, verify};

use crate::plan::{Op, Plan};
use crate::subject::{Phase, TASK};

/// Time limit of a child.
const TIMEOUT: Duration = Duration::from_secs(90);
/// Positions per operation that the short sweep tries, in the middle of the phase.
const SHORT: u64 = 1;
/// Number of findings that end the sweep, since each may have taken [`TIMEOUT`].
const MAX_FINDINGS: usize = 20;
const BETWEEN: &str = "\n\n";
/// Environment variable of the full sweep: every n-th position is tried.
const EVERY: &str = "FAULTS_EVERY";

/// Outcome of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// Nothing failed, because the operation does not occur that often.
    NotReached,
    /// No error was reported, and nothing was lost.
    Unnoticed,
    /// Reported, and the same process could write the log again.
    Recovered,
    /// Reported, and the next process could write the log again.
    NextStart,
    /// The process ended without a signal; the next one could write the log again.
    Ended,
}

#[test]
fn failing_disk_operation_loses_no_acknowledged_record_and_does_not_hang() {
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
                // At least one position of each operation, even if it occurs rarely.
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
                        assert!(wrong.len() < MAX_FINDINGS, "{}", wrong.join(BETWEEN));
                    }
                }
            }
            // Printed incrementally, because the full sweep takes hours.
            if let Some(outcomes) = table.get(&(phase, op)) {
                println!("{:<10} {:<9} {outcomes:?}", format!("{phase:?}"), format!("{op:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(table.len() > 20, "too few operations were reached");
}

#[test]
fn unresponsive_disk_is_reported_and_delays_calls_only_briefly() {
    let folder = tempfile::tempdir().unwrap();
    let shim = build(folder.path());
    let (phase, op) = (Phase::Stall, Op::Sync);
    let run = Run { shim: &shim, phase, op, error: 0, nth: 0, times: 0, only: "" };
    let (ended_well, output) = run.run(&self::folder()).unwrap();
    assert!(ended_well, "{output}");
    for expected in ["reported the disk has not answered for", "refused the activity log", "back"] {
        assert!(output.lines().any(|line| line.starts_with(expected)), "{expected}: {output}");
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

pub(crate) struct Run<'a> {
    pub(crate) shim: &'a Path,
    pub(crate) phase: Phase,
    pub(crate) op: Op,
    pub(crate) error: u32,
    pub(crate) nth: u64,
    pub(crate) times: u64,
    /// Restricts the faults to files below this path.
    pub(crate) only: &'a str,
}

impl std::fmt::Display for Run<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { phase, op, error, nth, times, .. } = self;
        write!(f, "{phase:?} {op:?} {error} {nth} {times}")
    }
}

impl Run<'_> {
    /// Number of operations of this kind in the phase, and number of records that a salvage keeps in it.
    fn count(&self) -> (u64, u64) {
        let output = self.run(&folder()).unwrap().1;
        let counts = output.lines().filter_map(|line| line.strip_prefix("count "));
        let kept = output.split_once("kept: ").and_then(|(_, rest)| rest.split(',').next());
        let kept = kept.map_or(0, |kept| kept.parse().unwrap());
        assert!(self.phase != Phase::Salvage || kept > 100, "{output}");
        (counts.map(|n| n.parse::<u64>().unwrap()).sum(), kept)
    }

    /// Outcome of the run, or a finding. A salvage must keep at least `kept` records.
    fn outcome(&self, kept: u64) -> Result<Outcome, String> {
        let dir = folder();
        let (ended_well, output) = self.run(&dir)?;
        let failed = Plan::open(&dir.path().join("plan")).failed();
        let has = |start: &str| output.lines().any(|line| line.starts_with(start));
        let acknowledged = output.lines().filter_map(|line| line.strip_prefix("acknowledged "));
        let acknowledged = acknowledged.map(|n| n.parse::<u64>().unwrap()).max().unwrap_or(0);
        let log = dir.path().join("files/log");
        if !ended_well {
            start_again(&log).map_err(|why| format!("{why}\n{output}"))?;
        }
        let report = verify::folder(&log, dir.path(), |_, _| {});
        let report = report.map_err(|error| format!("{error}\n{output}"))?;
        let min = if self.phase == Phase::Salvage { kept } else { acknowledged };
        if !report.is_sound() || report.last < min {
            return Err(format!("{report:?}\n{output}"));
        }
        match (failed, ended_well) {
            (0, true) => Ok(Outcome::NotReached),
            (_, true) if has("not back") && has("reported ") => Ok(Outcome::NextStart),
            (_, true) if has("not back") => Err(format!("no error was reported\n{output}")),
            (_, true) if has("reported ") => Ok(Outcome::Recovered),
            (_, true) => Ok(Outcome::Unnoticed),
            // The process may end if memory allocation fails.
            (_, false) if self.op == Op::Alloc => Ok(Outcome::Ended),
            (_, false) => Err(format!("the process failed\n{output}")),
        }
    }

    /// Runs the child. Returns whether it succeeded, and its output.
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
        let output = format!("{}{}", out.join().unwrap(), err.join().unwrap());
        match status {
            Some(status) => Ok((status.success(), output)),
            None => Err(format!("the process hangs\n{output}")),
        }
    }
}

/// Restarts after the process has ended, as an operator would: with `--salvage` if the log is damaged.
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

/// A folder in memory if possible, since a sweep opens hundreds of logs.
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

/// Waits for the end; `None` if the process had to be killed.
fn wait(child: &mut Child) -> Option<std::process::ExitStatus> {
    let deadline = Instant::now() + TIMEOUT;
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
