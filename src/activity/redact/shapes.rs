//! The shapes of well-known credentials, and the sets of bytes that words are made of. Pure.

/// Prefixes that credentials are known by, and how many characters follow at least.
pub(super) const SHAPES: &[(&str, usize)] = &[
    ("ghp_", 20),
    ("gho_", 20),
    ("ghu_", 20),
    ("ghs_", 20),
    ("ghr_", 20),
    ("github_pat_", 20),
    ("glpat-", 16),
    ("sk-", 20),
    ("sk_live_", 16),
    ("sk_test_", 16),
    ("rk_live_", 16),
    ("rk_test_", 16),
    ("xoxb-", 10),
    ("xoxp-", 10),
    ("xoxa-", 10),
    ("xoxr-", 10),
    ("xoxs-", 10),
    ("xapp-", 10),
    ("AKIA", 16),
    ("ASIA", 16),
    ("AIza", 30),
    ("ya29.", 20),
    ("npm_", 30),
    ("pypi-", 30),
    ("hf_", 30),
    ("dop_v1_", 40),
    ("shpat_", 28),
    ("lin_api_", 20),
    ("SG.", 30),
    ("eyJ", 40),
];

/// True where text begins with the shape of a credential; where it was `cut`, with as much of one
/// as there is.
pub(super) fn is_credential(text: &[u8], cut: bool) -> bool {
    // The first letter decides nearly always.
    let Some(first) = text.first() else { return false };
    if !has(&SHAPE_BEGINS, *first) {
        return false;
    }
    SHAPES.iter().any(|(prefix, least)| {
        text.strip_prefix(prefix.as_bytes()).is_some_and(|rest| {
            let head = rest.get(..*least).or(cut.then_some(rest));
            // What ends a sentence or names a file is not a token.
            head.is_some_and(|head| head.iter().all(|byte| is_word(*byte) || *byte == b'.'))
        })
    })
}

/// Parts of words, of keys among them.
pub(super) fn is_word(byte: u8) -> bool {
    has(&WORD, byte)
}

/// A set of bytes: asked of every byte of every payload, so a look-up and no comparisons.
type Bytes256 = [bool; 256];

fn has(set: &Bytes256, byte: u8) -> bool {
    set.get(usize::from(byte)).is_some_and(|has| *has)
}

#[expect(clippy::indexing_slicing, reason = "at compile time, and within the tables")]
const WORD: Bytes256 = {
    let mut set = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        set[byte] = (byte as u8).is_ascii_alphanumeric() || matches!(byte as u8, b'_' | b'-');
        byte += 1;
    }
    set
};

/// First letters of [`SHAPES`].
#[expect(clippy::indexing_slicing, reason = "at compile time, and within the tables")]
const SHAPE_BEGINS: Bytes256 = {
    let mut set = [false; 256];
    let mut shape = 0;
    while shape < SHAPES.len() {
        set[SHAPES[shape].0.as_bytes()[0] as usize] = true;
        shape += 1;
    }
    set
};

/// Parts of credentials.
pub(super) fn is_token(byte: u8) -> bool {
    is_word(byte) || matches!(byte, b'.' | b'/' | b'+' | b'=' | b'~')
}
