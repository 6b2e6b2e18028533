//! Measurements of the machine: CPU time of threads, memory, and how long the disk takes to sync.

use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

/// Number of measured syncs.
const SYNCS: usize = 200;
/// Bytes written before each sync: a small batch.
const SYNC_BYTES: usize = 64 << 10;

/// CPU time used by this thread, in nanoseconds.
pub(super) fn own_cpu() -> u64 {
    cpu("/proc/thread-self/schedstat").unwrap_or_default()
}

/// Name and id of a thread, and the CPU time it has used in nanoseconds.
pub(super) type Thread = (String, u64, u64);

/// All threads of this process.
pub(super) fn threads() -> Result<Vec<Thread>, Box<dyn Error>> {
    let mut all = Vec::new();
    for task in fs::read_dir("/proc/self/task")? {
        let path = task?.path();
        let tid = path.file_name().and_then(|it| it.to_str()).map_or(Ok(0), str::parse)?;
        let name = fs::read_to_string(path.join("comm"))?.trim().to_owned();
        all.push((name, tid, cpu(path.join("schedstat")).unwrap_or_default()));
    }
    Ok(all)
}

fn cpu(path: impl AsRef<Path>) -> Option<u64> {
    fs::read_to_string(path).ok()?.split(' ').next()?.parse().ok()
}

/// Resets the peak of resident memory. Returns the resident memory in KiB.
pub(super) fn reset_peak() -> Result<u64, Box<dyn Error>> {
    fs::write("/proc/self/clear_refs", "5")?;
    status("VmRSS:")
}

/// Peak of resident memory in KiB since the last reset.
pub(super) fn peak() -> Result<u64, Box<dyn Error>> {
    status("VmHWM:")
}

fn status(name: &str) -> Result<u64, Box<dyn Error>> {
    let text = fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// Duration of each of [`SYNCS`] durable writes, in milliseconds, without other load.
pub(super) fn syncs(dir: &Path) -> Result<Vec<f64>, Box<dyn Error>> {
    let path = dir.join("sync");
    let mut file = File::create(&path)?;
    let bytes = vec![0x5a; SYNC_BYTES];
    let mut times = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        let start = Instant::now();
        file.write_all(&bytes)?;
        file.sync_data()?;
        times.push(start.elapsed().as_secs_f64() * 1000.0);
    }
    fs::remove_file(path)?;
    Ok(times)
}
