//! Fault plan: a file with instructions for the shim, mapped or written by both processes. Its layout is that of
//! `struct plan` in shim.c.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// An operation, in the order of shim.c.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Op {
    Write,
    Sync,
    Open,
    Rename,
    Remove,
    Truncate,
    Read,
    Mmap,
    Alloc,
}

impl Op {
    pub(crate) const ALL: [Self; 9] = [
        Self::Write,
        Self::Sync,
        Self::Open,
        Self::Rename,
        Self::Remove,
        Self::Truncate,
        Self::Read,
        Self::Mmap,
        Self::Alloc,
    ];
    const NONE: u32 = Self::ALL.len() as u32;

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|op| format!("{op:?}") == name)
    }

    /// Errors that the kernel returns for it, as errno values.
    pub(crate) fn errors(self) -> &'static [u32] {
        match self {
            Self::Write | Self::Truncate => &[ENOSPC, EIO],
            Self::Sync | Self::Read => &[EIO],
            Self::Open => &[EMFILE, ENOSPC],
            Self::Rename => &[ENOSPC],
            Self::Remove => &[EIO],
            Self::Mmap | Self::Alloc => &[ENOMEM],
        }
    }
}

pub(crate) const EIO: u32 = 5;
pub(crate) const ENOMEM: u32 = 12;
pub(crate) const EMFILE: u32 = 24;
pub(crate) const ENOSPC: u32 = 28;

const BYTES: usize = 32 + 8 * Op::ALL.len() + 8;

pub(crate) struct Plan(File);

impl Plan {
    /// Creates a plan without faults.
    pub(crate) fn create(path: &Path) -> Self {
        std::fs::write(path, [0; BYTES]).unwrap();
        let plan = Self::open(path);
        plan.disarm();
        plan
    }

    pub(crate) fn open(path: &Path) -> Self {
        Self(OpenOptions::new().read(true).write(true).open(path).unwrap())
    }

    /// Fails `times` operations from the `nth` on, counted from 0.
    pub(crate) fn arm(&self, op: Op, error: u32, nth: u64, times: u64) {
        self.put(4, &error.to_ne_bytes());
        self.put(8, &(self.seen(op) + nth).to_ne_bytes());
        self.put(16, &times.to_ne_bytes());
        self.put(0, &(op as u32).to_ne_bytes());
    }

    /// Delays each such operation, which then succeeds.
    pub(crate) fn delay(&self, op: Op, millis: u32) {
        self.put(4, &0_u32.to_ne_bytes());
        self.put(8, &0_u64.to_ne_bytes());
        self.put(16, &u64::MAX.to_ne_bytes());
        self.put(24, &millis.to_ne_bytes());
        self.put(0, &(op as u32).to_ne_bytes());
    }

    /// Ends all faults.
    pub(crate) fn disarm(&self) {
        self.put(0, &Op::NONE.to_ne_bytes());
        self.put(24, &0_u32.to_ne_bytes());
    }

    /// Number of such operations so far.
    pub(crate) fn seen(&self, op: Op) -> u64 {
        self.number(32 + 8 * op as u64)
    }

    /// Number of failed operations so far.
    pub(crate) fn failed(&self) -> u64 {
        self.number(32 + 8 * Op::ALL.len() as u64)
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.0.write_all_at(bytes, at).unwrap();
    }

    fn number(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, at).unwrap();
        u64::from_ne_bytes(bytes)
    }
}
