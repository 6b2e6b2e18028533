//! The parameters of `tools/call`, as slices of the request.
//!
//! Deliberately reads one object deep: what the arguments are is the affair of whoever calls.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::upstream::{Beside, Takes};

/// `params` of `tools/call`.
#[derive(Clone, Debug)]
pub struct CallParams<'a> {
    /// `name`
    pub name: Cow<'a, str>,
    /// `arguments`, raw; an empty object if there are none.
    pub arguments: Bytes,
    /// The rest: `_meta`, and members such as `inputResponses` and `requestState`.
    pub beside: Beside,
}

impl<'a> CallParams<'a> {
    /// Reads `params`, in which the caller has found no duplicate key; `takes` is what can be asked
    /// of the client.
    ///
    /// # Errors
    /// When it is no object, has no `name`, or an `_meta` that is no object.
    pub fn read(params: &'a Bytes, takes: Takes) -> Result<Self, serde_json::Error> {
        let raw: Raw<'a> = serde_json::from_slice(params)?;
        let slice = |raw: &RawValue| params.slice_ref(raw.get().as_bytes());
        if raw.meta.is_some_and(|meta| !meta.get().starts_with('{')) {
            return Err(serde::de::Error::custom("_meta must be an object"));
        }
        Ok(Self {
            name: raw.name.ok_or_else(|| serde::de::Error::missing_field("name"))?,
            arguments: raw.arguments.map_or(Bytes::from_static(b"{}"), slice),
            beside: Beside { meta: raw.meta.map(slice), members: members(&raw.others)?, takes },
        })
    }
}

fn members(others: &[(Cow<'_, str>, &RawValue)]) -> Result<Bytes, serde_json::Error> {
    let mut text = String::new();
    for (key, value) in others {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(&serde_json::to_string(key)?);
        text.push(':');
        text.push_str(value.get());
    }
    Ok(Bytes::from(text))
}

/// The raw `progressToken` of an `_meta`, a string or an integer.
#[must_use]
pub fn progress_token(meta: &Bytes) -> Option<Bytes> {
    #[derive(Deserialize)]
    struct Token<'a> {
        #[serde(borrow, rename = "progressToken")]
        token: Option<&'a RawValue>,
    }
    let raw = serde_json::from_slice::<Token<'_>>(meta).ok()?.token?.get();
    let fits = raw.starts_with(|first: char| matches!(first, '"' | '-' | '0'..='9'));
    fits.then(|| meta.slice_ref(raw.as_bytes()))
}

#[derive(Default)]
struct Raw<'a> {
    name: Option<Cow<'a, str>>,
    arguments: Option<&'a RawValue>,
    meta: Option<&'a RawValue>,
    others: Vec<(Cow<'a, str>, &'a RawValue)>,
}

/// A string that is a slice of the document where it has no escape.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for Raw<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Raw<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw<'de>, A::Error> {
                let mut raw = Raw::default();
                while let Some(Text(key)) = map.next_key()? {
                    match &*key {
                        "name" => raw.name = Some(map.next_value::<Text<'de>>()?.0),
                        "arguments" => raw.arguments = Some(map.next_value()?),
                        "_meta" => raw.meta = Some(map.next_value()?),
                        _ => raw.others.push((key, map.next_value()?)),
                    }
                }
                Ok(raw)
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(raw: &Bytes) -> CallParams<'_> {
        CallParams::read(raw, Takes::default()).unwrap()
    }

    #[test]
    fn what_is_read_are_slices_of_the_request() {
        let raw =
            Bytes::from_static(br#"{ "name":"x", "arguments": {"a" : 1.0}, "_meta":{"k":[ ]} }"#);
        let read = read(&raw);
        assert!(matches!(read.name, Cow::Borrowed("x")), "a plain name costs nothing");
        assert_eq!(read.arguments, r#"{"a" : 1.0}"#);
        assert!(raw.as_ptr_range().contains(&read.arguments.as_ptr()));
        assert_eq!(read.beside.meta.unwrap(), r#"{"k":[ ]}"#);
        assert_eq!(read.beside.members, "");
    }

    #[test]
    fn a_retry_keeps_what_it_brings_along() {
        let raw = Bytes::from_static(
            br#"{"requestState":"a\u0062","name":"x","inputResponses":{"q" : {}},"odd\"key":1.0}"#,
        );
        let read = read(&raw);
        assert_eq!(read.arguments, "{}");
        assert_eq!(
            read.beside.members,
            r#""requestState":"a\u0062","inputResponses":{"q" : {}},"odd\"key":1.0"#
        );
    }

    #[test]
    fn a_progress_token_is_a_string_or_an_integer() {
        let token = |meta: &'static str| progress_token(&Bytes::from_static(meta.as_bytes()));
        assert_eq!(token(r#"{"a":1,"progressToken": "p\u0031" }"#).unwrap(), r#""p\u0031""#);
        assert_eq!(token(r#"{"progressToken":-7}"#).unwrap(), "-7");
        for none in ["{}", r#"{"progressToken":{}}"#, r#"{"progressToken":null}"#, "[]"] {
            assert_eq!(token(none), None, "{none}");
        }
    }

    #[test]
    fn what_is_no_call_is_refused() {
        for raw in ["[]", "null", "{}", r#"{"name":7}"#, r#"{"name":"x","_meta":[]}"#, "{"] {
            assert!(
                CallParams::read(&Bytes::from_static(raw.as_bytes()), Takes::default()).is_err(),
                "{raw}"
            );
        }
    }
}
