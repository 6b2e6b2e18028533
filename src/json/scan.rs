//! The streaming scanner, and other passes over JSON text as bytes at memory speed.
//!
//! Only what must be as quick as memory stands here, and with it the only unsafe code of the crate: the
//! kernels for vectors. There is no NEON kernel, as there was no machine to test it on.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod duplicate_keys;
mod kernel;
mod key;
mod number;
mod report;
mod scanner;
mod skip;
mod swar;
mod table;
mod translate;
#[cfg(target_arch = "x86_64")]
mod vbmi;

pub use self::{
    duplicate_keys::MAX_KEYS,
    kernel::Kernel,
    report::{
        Ambiguity, Breach, Closed, Doubt, Guard, MessageKind, ScanError, ScanFault, ScanLimits,
        ScannedMember, ScannedMessage, ScannedPart,
    },
    scanner::Scanner,
    table::Table,
    translate::{has_unusual_escape, translate},
};
pub(in crate::json) use self::{kernel::container_len, swar::string_run};
