//! Every row of the table, plain and nested and cut, in all spellings; and what stays.

use base64::Engine;
use proptest::prelude::*;

use super::table::{FORMS, KEYS, PREFIXES, SecretForm, Whole};
use super::*;

const SECRET: &str = "zq9hunterzq9hunter";

/// So many bytes of a secret may be left where a text was cut: too few to matter.
const HEAD: usize = 3;

thread_local! {
    static REDACTOR: Redactor = Redactor::new(&["licence_no".into()]);
    /// The same without the prefilter.
    static LONG: Redactor = Redactor { prefilter: None, ..Redactor::new(&["licence_no".into()]) };
}

/// The first `limit` bytes of a text, redacted; with and without the prefilter alike.
#[track_caller]
fn redact_cut(text: &str, limit: usize) -> String {
    let payload = PayloadRef::cut(text.as_bytes(), limit);
    let with = |redactor: &Redactor| redactor.payload(payload).0.into_owned();
    let (prefilter, long) = (REDACTOR.with(with), LONG.with(with));
    assert_eq!(String::from_utf8_lossy(&prefilter), String::from_utf8_lossy(&long), "{text}");
    String::from_utf8_lossy(&prefilter).into_owned()
}

#[track_caller]
fn redact(text: &str) -> String {
    redact_cut(text, text.len())
}

/// The texts that carry a text: as it is, in a block of text, in a string of JSON in an argument,
/// and twice in strings.
fn carried(text: &str) -> [String; 4] {
    let block = serde_json::json!({ "content": [{ "type": "text", "text": text }] }).to_string();
    let argument =
        serde_json::json!({ "args_json": serde_json::json!({ "in": text }).to_string() });
    let twice = serde_json::json!({ "t": block }).to_string();
    [text.to_owned(), block, argument.to_string(), twice]
}

/// No more than `head` bytes of `secret` are left of any beginning of the text.
#[track_caller]
fn no_cut_shows(text: &str, secret: &str, head: usize) {
    let shown = &secret[..secret.len().min(head + 1)];
    for carried in carried(text) {
        for limit in 0..=carried.len() {
            let left = redact_cut(&carried, limit);
            assert!(
                !left.contains(shown),
                "cut at {limit} of {}: {left}\n{carried}",
                carried.len()
            );
        }
    }
}

#[test]
fn act_8_every_form_is_taken_out_and_nothing_beside_it() {
    for SecretForm { name, text, secret, left, .. } in FORMS {
        assert!(text.contains(secret), "{name}: the row is wrong");
        for (carried, expected) in carried(text).into_iter().zip(carried(left)) {
            assert_eq!(redact(&carried), expected, "{name}");
        }
    }
}

#[test]
fn act_8_no_cut_shows_the_head_of_a_secret_of_any_form() {
    for form in FORMS {
        no_cut_shows(form.text, form.secret, HEAD);
    }
}

#[test]
fn act_8_what_looks_like_a_form_stays_byte_for_byte() {
    for form in FORMS {
        for stays in form.stay {
            for carried in carried(stays) {
                assert_eq!(redact(&carried), carried, "{}", form.name);
            }
        }
    }
}

/// A key of several words in all manners of writing one.
fn spellings(words: &str) -> Vec<String> {
    let capital = |word: &str| {
        let (first, rest) = word.split_at(1);
        format!("{}{rest}", first.to_uppercase())
    };
    let parts: Vec<_> = words.split(' ').collect();
    let pascal: String = parts.iter().map(|part| capital(part)).collect();
    let camel = format!("{}{}", &pascal[..1].to_lowercase(), &pascal[1..]);
    let snake = parts.join("_");
    let train: Vec<_> = parts.iter().map(|part| capital(part)).collect();
    let mut all = vec![
        parts.join("-"),
        snake.to_uppercase(),
        parts.concat().to_uppercase(),
        train.join("-"),
        pascal,
        camel,
        snake,
        parts.concat(),
    ];
    all.sort();
    all.dedup();
    all
}

#[test]
fn act_8_every_key_in_every_spelling_and_place() {
    for key in KEYS {
        let mut names = spellings(key.words);
        for more in ["2", "_hash", "Value"] {
            names.push(format!("{}{more}", names[0]));
        }
        if key.whole == Whole::No {
            names.extend(spellings(&format!("db {}", key.words)));
        }
        for name in names {
            for (text, left) in [
                (format!(r#"{{"{name}":"S","a":1}}"#), None),
                (
                    format!(r#"{{"{name}" : ["S"],"a":1}}"#),
                    Some(format!(r#"{{"{name}" : "S","a":1}}"#)),
                ),
                (format!("{name}=S\nx"), None),
                (format!("x; {name}='S'"), None),
                (format!("https://h/?a=1&{name}=S&x=1"), None),
                (format!("x --{name} S y"), None),
                (format!(r#"["--{name}","S"]"#), None),
                (format!(r#"{{"name":"{name}","value":"S"}}"#), None),
                (format!(r#"{{"value":"S","name":"{name}"}}"#), None),
                (format!("<{name}>S</{name}>"), None),
            ] {
                let left = left.as_ref().unwrap_or(&text).replace('S', "\u{1}");
                // The name may hold the letter.
                let marked = name.replace('S', "\u{1}");
                let left = left.replace(&marked, &name).replace('\u{1}', REDACTED);
                let text =
                    text.replace('S', "\u{1}").replace(&marked, &name).replace('\u{1}', SECRET);
                assert_eq!(redact(&text), left, "{}", key.words);
            }
        }
        no_cut_shows(&format!(r#"{{"{}":"{SECRET}"}}"#, key.words), SECRET, HEAD);
    }
}

#[test]
fn what_looks_like_a_key_stays_byte_for_byte() {
    for key in KEYS {
        for name in key.stay {
            for text in [
                format!(r#"{{"{name}":"abc","a":1}}"#),
                format!("{name}=abc"),
                format!("x --{name} abc"),
                format!(r#"["--{name}","abc"]"#),
                format!(r#"{{"name":"{name}","value":"abc"}}"#),
                format!(r#"{{"value":"abc","name":"{name}"}}"#),
            ] {
                for carried in carried(&text) {
                    assert_eq!(redact(&carried), carried, "{}", key.words);
                }
            }
        }
    }
}

#[test]
fn act_8_every_prefix_of_a_credential_is_known_and_too_short_a_one_stays() {
    for known in PREFIXES {
        let filler: String = "a1B2c3D4e5".chars().cycle().take(known.least).collect();
        let secret = format!("{}{filler}", known.starts);
        let left =
            if known.stays { format!("{}{REDACTED}", known.starts) } else { REDACTED.into() };
        let text = format!("see {secret} there");
        for (carried, expected) in
            carried(&text).into_iter().zip(carried(&format!("see {left} there")))
        {
            assert_eq!(redact(&carried), expected);
        }
        // The beginning says what it is, and no more.
        let (hidden, head) =
            if known.stays { (&*filler, 0) } else { (&*secret, known.starts.len()) };
        no_cut_shows(&text, hidden, head.max(HEAD));
        let short = format!("see {}{} there", known.starts, &filler[..known.least.min(4) - 1]);
        assert_eq!(redact(&short), short);
        if known.digit {
            let words = format!("see {}{} there", known.starts, "words-".repeat(8));
            assert_eq!(redact(&words), words);
        }
    }
    assert!(KEYS.len() + PREFIXES.len() + FORMS.len() >= 84);
}

#[test]
fn act_8_a_token_of_an_agent_is_known_wherever_it_stands() {
    // As `token create` shows one: 43 digits of base64url, with both of its signs.
    const TOKEN: &str = "mcpp_xH2-9kQw_Lr7Zt0Vb3Nc6Ym1Xa4Sd8Fg5Hj2-Kl_PoI";
    for (text, left) in [
        ("{}", "{}"),
        ("use {} now", "use {} now"),
        ("https://h/mcp?a=1&k={}&b=2", "https://h/mcp?a=1&k={}&b=2"),
        (r#"{"env":["MCP={}"],"n":1}"#, r#"{"env":["MCP={}"],"n":1}"#),
    ] {
        let (text, left) = (text.replace("{}", TOKEN), left.replace("{}", REDACTED));
        for (carried, expected) in carried(&text).into_iter().zip(carried(&left)) {
            assert_eq!(redact(&carried), expected);
        }
        no_cut_shows(&text, TOKEN, "mcpp_".len());
    }
    // JSON in base64, as a saved config or a cookie may hold it.
    let json = base64::engine::general_purpose::STANDARD
        .encode(format!(r#"{{"token":"{TOKEN}","note":"n"}}"#));
    assert!(!redact(&format!("x {json} y")).contains(&json[..24]));
    for stays in ["mcpp_config", "mcpp_short1", "the mcpp_ prefix"] {
        assert_eq!(redact(stays), stays);
    }
}

#[test]
fn act_8_keys_of_the_configuration_count_too() {
    for (text, left) in [
        (r#"{"Licence-No":"77","c":"d"}"#, r#"{"Licence-No":"[redacted]","c":"d"}"#),
        ("licence_no=77 x", "licence_no=[redacted] x"),
    ] {
        assert_eq!(redact(text), left);
    }
}

#[test]
fn act_8_escapes_in_keys_and_values_hide_nothing() {
    for (text, left) in [
        (r#"{"pass\u0077ord":"hunter2"}"#, r#"{"pass\u0077ord":"[redacted]"}"#),
        (r#"{"secret":"a\"b","c":"d"}"#, r#"{"secret":"[redacted]","c":"d"}"#),
        (r#"{"githubToken":{"x":["}",1]},"b":2}"#, r#"{"githubToken":"[redacted]","b":2}"#),
        (r#"curl -H "Authorization: Bearer abc""#, r#"curl -H "Authorization: Bearer [redacted]""#),
        (r#"password="a b" next"#, r#"password="[redacted]" next"#),
    ] {
        assert_eq!(redact(text), left);
    }
}

#[test]
fn what_is_no_secret_stays_byte_for_byte() {
    for text in [
        r#"{"max_tokens":5,"passenger":"x","author":"me","keyboard":"q","b":[1,"a\nb","é"]}"#,
        r#"{"path":"C:\\dir\\file","q":"say \"hi\""}"#,
        "\"unclosed \\",
        "sk-learn and hf_hub",
        r#"{"usage":{"prompt_tokens":1,"completion_tokens":2},"nextPageToken":"abc","cursor":"x"}"#,
        r#"{"content":[{"text":"hello","type":"text"}]}"#,
        "a - b -- c --help -v -x",
    ] {
        assert_eq!(redact(text), text);
    }
}

proptest! {
    #[test]
    fn act_8_no_value_of_a_sensitive_key_survives_in_any_json(
        before in "[a-z\"\\\\{}\\[\\]: ,é]{0,20}",
        depth in 0..5,
    ) {
        let mut value = serde_json::json!({ "b": before, "password": "hunter2!" });
        for _ in 0..depth {
            value = serde_json::json!({ "in": value.to_string(), "b": before });
        }
        let clean = redact(&value.to_string());
        prop_assert!(!clean.contains("hunter2"), "{}", clean);
        prop_assert!(serde_json::from_str::<serde_json::Value>(&clean).is_ok(), "{}", clean);
    }

    #[test]
    fn any_bytes_are_redacted_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let payload = PayloadRef::cut(&bytes, 150);
        let (kept, total) = Redactor::default().payload(payload);
        prop_assert!(total >= kept.len() as u64);
    }
}
