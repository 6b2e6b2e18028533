//! What the process has of the system: rights on files, descriptors, and priorities of threads.
//!
//! Where a file lies and who opens a socket is known on the floors above.

pub mod descriptors;
pub mod priority;
pub mod private;
