//! What the process has of the system: rights on files, descriptors, priorities of threads, and the
//! processes it starts.
//!
//! Where a file lies and who opens a socket is known on the floors above.

pub mod alternating_file;
pub mod bounded_file;
pub mod descriptors;
pub mod edited_file;
pub mod keyring;
pub mod marked;
pub mod priority;
pub mod private;
pub mod space;
