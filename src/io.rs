//! What reading and writing needs on either side, whoever the peer is: the time, deadlines, memory to read into, the
//! framing of HTTP/1.1, tasks that are told to end, addresses, and the files of TLS.
//!
//! Knows nothing of MCP but the header that HTTP repeats a session's id in.

pub mod address;
pub mod background_task;
pub mod buffer_pool;
pub mod clock;
pub mod deadline;
pub mod gate;
pub mod http1;
pub mod line_reader;
pub mod tls;
pub mod write_timeout;
