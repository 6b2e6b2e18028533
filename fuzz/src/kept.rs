//! Target `kept`: files with the pins of a server and with agent tokens.
//!
//! Input: the text of either file. It is decoded or refused. A decoded file is encoded to the same text with the same
//! meaning: no tool and no token occurs twice, and at any time each token is either in force or not.

use std::time::{Duration, SystemTime};

use mcpproxy_catalog::pin_file::{read_pins, write_pins};
use mcpproxy_policy::identity::{TokenTable, read_stored, write_stored};

pub fn run(data: &[u8]) {
    tokens(data);
    if let Ok(text) = std::str::from_utf8(data) {
        pins(text);
    }
}

fn tokens(data: &[u8]) {
    let Ok(tokens) = read_stored(data) else { return };
    let again = write_stored(tokens.clone()).expect("it is written");
    assert_eq!(read_stored(&again).as_ref(), Ok(&tokens));
    let table = TokenTable::new(&tokens);
    assert_eq!(table.is_empty(), tokens.is_empty());
    for seconds in [0, 1, 2_000_000_000, 1 << 40] {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        // The input contains hashes only, so no secret in it can be valid.
        assert!(table.prove(data, now).is_err());
    }
}

fn pins(text: &str) {
    let Ok(pins) = read_pins(text, "s") else { return };
    let again = write_pins(&pins).expect("it is written");
    let again = String::from_utf8(again).expect("it is text");
    assert_eq!(read_pins(&again, "s"), Ok(pins));
}
