//! Target `kept`: what is kept of whom and what is trusted, the pins of a server and the agent tokens.
//!
//! Input: the text of either. It is read or refused; what is read is written back as it was, and means the same: no tool
//! and no token stands there twice, and every token is in force or not at any time.

use std::time::{Duration, SystemTime};

use mcpproxy::catalog::pin_file::{read_pins, write_pins};
use mcpproxy::identity::{TokenTable, read_kept, write_kept};

/// The fuzz target.
pub fn run(data: &[u8]) {
    tokens(data);
    if let Ok(text) = std::str::from_utf8(data) {
        pins(text);
    }
}

fn tokens(data: &[u8]) {
    let Ok(tokens) = read_kept(data) else { return };
    let again = write_kept(tokens.clone()).expect("it is written");
    assert_eq!(read_kept(&again).as_ref(), Ok(&tokens));
    let table = TokenTable::new(&tokens);
    assert_eq!(table.is_empty(), tokens.is_empty());
    for seconds in [0, 1, 2_000_000_000, 1 << 40] {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        // Nobody knows a secret of theirs.
        assert!(table.prove(data, now).is_err());
    }
}

fn pins(text: &str) {
    let Ok(pins) = read_pins(text, "s") else { return };
    let again = write_pins(&pins).expect("it is written");
    let again = String::from_utf8(again).expect("it is text");
    assert_eq!(read_pins(&again, "s"), Ok(pins));
}
