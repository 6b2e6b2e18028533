//! Protobuf messages as received by a collector of traces and logs, decoded from the wire format only.

use std::collections::BTreeMap;

enum ProtoField<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Fields of a message, decoded from the wire format only.
fn fields(mut bytes: &[u8]) -> Vec<(u64, ProtoField<'_>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let mut take = |count: usize| {
            let (taken, rest) = bytes.split_at(count);
            bytes = rest;
            taken
        };
        let field = match tag & 7 {
            1 => ProtoField::Number(u64::from_le_bytes(take(8).try_into().unwrap())),
            5 => ProtoField::Number(u32::from_le_bytes(take(4).try_into().unwrap()).into()),
            0 => ProtoField::Number(varint(&mut bytes)),
            2 => {
                let length = varint(&mut bytes) as usize;
                let (taken, rest) = bytes.split_at(length);
                bytes = rest;
                ProtoField::Bytes(taken)
            }
            other => panic!("wire type {other}"),
        };
        found.push((tag >> 3, field));
    }
    found
}

/// The messages, texts or ids of field `number`.
pub(crate) fn all(message: &[u8], number: u64) -> Vec<&[u8]> {
    let found = fields(message).into_iter().filter_map(|(at, field)| match field {
        ProtoField::Bytes(bytes) if at == number => Some(bytes),
        ProtoField::Bytes(_) | ProtoField::Number(_) => None,
    });
    found.collect()
}

pub(crate) fn text(message: &[u8], number: u64) -> String {
    all(message, number)
        .first()
        .map(|it| String::from_utf8(it.to_vec()).unwrap())
        .unwrap_or_default()
}

pub(crate) fn hex(message: &[u8], number: u64) -> String {
    let bytes = all(message, number).first().map(|it| it.to_vec()).unwrap_or_default();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn number(message: &[u8], number: u64) -> u64 {
    let found = fields(message).into_iter().find_map(|(at, field)| match field {
        ProtoField::Number(value) if at == number => Some(value),
        ProtoField::Bytes(_) | ProtoField::Number(_) => None,
    });
    found.unwrap_or_default()
}

fn value(any: &[u8]) -> String {
    match fields(any).into_iter().next() {
        Some((1, ProtoField::Bytes(text))) => String::from_utf8(text.to_vec()).unwrap(),
        Some((3, ProtoField::Number(number))) => number.to_string(),
        Some((5, ProtoField::Bytes(list))) => {
            all(list, 1).into_iter().map(value).collect::<Vec<_>>().join(",")
        }
        _ => panic!("an unknown value"),
    }
}

pub(crate) fn attributes(message: &[u8], at: u64) -> BTreeMap<String, String> {
    let pair = |pair: &[u8]| (text(pair, 1), value(all(pair, 2)[0]));
    all(message, at).into_iter().map(pair).collect()
}
