//! Target `headers`: the comparison of a header with the body gives the result of a simple reference, and the header
//! form of a value decodes to the value.
//!
//! Input, line by line: first `+` and the body's value, or nothing; then the lines of the header, each after a letter:
//! `r` the rest verbatim, `b` the rest in base64, `s` the body's value with spaces around it, `e` the same in base64.

use mcpproxy_protocol::mcp::headers::{Form, HeaderMismatch, NAME, agree, decode, encode};

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub fn run(data: &[u8]) {
    let mut given = data.split(|&byte| byte == b'\n');
    let body = given.next().and_then(|line| std::str::from_utf8(line.strip_prefix(b"+")?).ok());
    let said = body.unwrap_or_default().as_bytes();
    let lines: Vec<_> = given.take(3).filter_map(|line| header(line, said)).collect();
    let seen = || lines.iter().map(Vec::as_slice);
    for form in [Form::Plain, Form::Encodable] {
        let agreed = agree(NAME, form, seen(), body);
        assert_eq!(agreed, obvious(form, &lines, body), "{form:?} {lines:?} {body:?}");
    }
    if let Some(body) = body {
        let form = encode(body);
        assert!(form.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{form:?}");
        assert_eq!(decode(form.as_bytes()).as_deref(), Some(body));
        let lines = [form.as_bytes()].into_iter();
        assert_eq!(agree(NAME, Form::Encodable, lines, Some(body)), Ok(()));
    }
}

/// A line of the header: arbitrary, or one that probably agrees with the body.
fn header(given: &[u8], said: &[u8]) -> Option<Vec<u8>> {
    Some(match given {
        [b'r', rest @ ..] => rest.to_vec(),
        [b'b', rest @ ..] => encoded(rest),
        [b's', ..] => [b" \t", said, b" "].concat(),
        [b'e', ..] => encoded(said),
        _ => return None,
    })
}

fn obvious(form: Form, lines: &[Vec<u8>], body: Option<&str>) -> Result<(), HeaderMismatch> {
    match (lines, body) {
        ([], None) => Ok(()),
        ([], Some(_)) => Err(HeaderMismatch::Missing(NAME.into())),
        ([_], None) => Err(HeaderMismatch::Orphan(NAME.into())),
        ([line], Some(body)) => match value(form, line) {
            None => Err(HeaderMismatch::Unreadable(NAME.into())),
            Some(value) if value == body.as_bytes() => Ok(()),
            Some(_) => Err(HeaderMismatch::Different(NAME.into())),
        },
        ([_, _, ..], _) => Err(HeaderMismatch::Duplicate(NAME.into())),
    }
}

/// Text in UTF-8 that a line of the header represents.
fn value(form: Form, mut line: &[u8]) -> Option<Vec<u8>> {
    if line.iter().any(|&byte| byte != b'\t' && !(0x20..0x7f).contains(&byte)) {
        return None;
    }
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = line {
        line = rest;
    }
    let inner = line.strip_prefix(b"=?base64?").and_then(|rest| rest.strip_suffix(b"?="));
    let Some(inner) = inner.filter(|_| form == Form::Encodable) else {
        return Some(line.to_vec());
    };
    let plain = unbase64(inner)?;
    std::str::from_utf8(&plain).ok()?;
    Some(plain)
}

/// The header form in base64.
fn encoded(plain: &[u8]) -> Vec<u8> {
    [b"=?base64?", base64(plain).as_slice(), b"?="].concat()
}

fn base64(plain: &[u8]) -> Vec<u8> {
    let mut made = Vec::new();
    for group in plain.chunks(3) {
        let bits = (0..3).fold(0, |bits, at| bits << 8 | u32::from(*group.get(at).unwrap_or(&0)));
        for at in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * at) & 63) as usize];
            made.push(if at > group.len() as u32 { b'=' } else { letter });
        }
    }
    made
}

/// The value of canonical base64; `None` for any other spelling.
fn unbase64(text: &[u8]) -> Option<Vec<u8>> {
    let mut plain = Vec::new();
    for group in text.chunks(4) {
        let mut bits = 0;
        for letter in group {
            // Any `=` counts as padding here; the comparison below rejects misplaced padding.
            let digit = LETTERS.iter().position(|known| known == letter);
            bits = bits << 6 | digit.or((*letter == b'=').then_some(0))? as u32;
        }
        plain.extend(&bits.to_be_bytes()[1..]);
    }
    let padding = text.iter().rev().take_while(|&&letter| letter == b'=').count();
    plain.truncate(plain.len().checked_sub(padding)?);
    (base64(&plain) == text).then_some(plain)
}
