//! Streaming scanner, and other passes over JSON text at memory speed.
//!
//! The vector kernels hold the only unsafe code of the workspace. There is no NEON kernel, because no machine was available to test one.

#[cfg(target_arch = "x86_64")]
mod avx;
mod kernel;
mod key;
mod report;
mod scanner;
mod skip;
#[cfg(target_arch = "x86_64")]
mod sse;
mod swar;
mod table;
mod translate;

pub use self::kernel::Kernel;
pub(crate) use self::kernel::container_len;
pub use self::key::MAX_KEYS;
pub use self::report::{
    Ambiguity, AmbiguityKind, Breach, Closed, Guard, MessageKind, ScanError, ScanFault, ScanLimits,
    ScannedMember, ScannedMessage, ScannedPart,
};
pub use self::scanner::Scanner;
pub use self::swar::string_run;
pub use self::table::Table;
pub use self::translate::{has_unusual_escape, translate};

pub fn is_utf8(bytes: &[u8]) -> bool {
    simdutf8::basic::from_utf8(bytes).is_ok()
}
