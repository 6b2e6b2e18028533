//! Names that mark secrets: keys, regardless of case and separators, and command-line options that take a
//! password. Pure.
//!
//! Only names are compared; callers decide where a value begins. A long option is recognized by its name. A short
//! option differs between programs, so the program's name or a user name in the same command is taken into account.

use super::credentials::is_word;
use super::table::{HARMLESS, KEYS, KeyMatch, MODIFIERS};

/// Maximum length of a key.
const MAX_KEY_BYTES: usize = 128;
/// Maximum number of modifiers after a key's name, as in `password_hash_base64`.
const MAX_MODIFIERS: usize = 3;
/// Ends of a folded text that mark the following value as secret only in the query of a URL.
const QUERY_ENDS: [&[u8]; 11] = [
    b"signature",
    b"hmac",
    b"?key",
    b"&key",
    b";key",
    b"?code",
    b"&code",
    b";code",
    b"?session",
    b"&session",
    b";session",
];
/// Number of trailing letters that are compared first.
const TAIL: usize = 3;

/// Built-in and configured keys.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    ends: Vec<Box<[u8]>>,
    /// Built-in keys that must match the whole name, because they are ordinary words at the end of other names.
    wholes: Vec<Box<[u8]>>,
    /// Configured endings.
    extra: Vec<Box<[u8]>>,
    /// Last [`TAIL`] letters of every possible end of a sensitive key, sorted.
    tails: Vec<u32>,
    /// Whether a sensitive key is shorter than [`TAIL`].
    any_tail: bool,
    /// Table by byte value: whether a sensitive key may end with the byte.
    lasts: Box<[bool]>,
}

impl Keys {
    pub(super) fn new(extra: &[String]) -> Self {
        let of = |whole: bool| {
            let rows = KEYS.iter().filter(move |row| (row.matches == KeyMatch::WholeName) == whole);
            rows.map(|row| fold(row.words.as_bytes())).collect::<Vec<_>>()
        };
        let (ends, wholes) = (of(false), of(true));
        let extra = extra.iter().map(|key| fold(key.as_bytes()));
        let extra: Vec<_> = extra.filter(|key| !key.is_empty()).collect();
        let all = ends.iter().chain(&wholes).chain(&extra).map(|word| &**word);
        let all = all.chain(MODIFIERS.iter().map(|word| word.as_bytes()));
        let mut tails: Vec<_> = all.clone().map(|word| tail(word.iter().rev())).collect();
        tails.sort_unstable();
        tails.dedup();
        let any_tail = all.clone().any(|word| word.len() < TAIL);
        let ends_word = |last: u8| {
            let letter = last.to_ascii_lowercase();
            let is_ignored = last.is_ascii_digit() || is_separator(last);
            is_ignored || all.clone().any(|word| word.last() == Some(&letter))
        };
        let lasts = (0..=u8::MAX).map(ends_word).collect();
        Self { ends, wholes, extra, tails, any_tail, lasts }
    }

    /// Whether a folded text may end with a sensitive key. Always true if it does end with one, even with an escaped
    /// tab after the key, and for keys that are secret only in queries.
    pub(super) fn may_end_with_key(&self, folded: &[u8]) -> bool {
        let mut name = folded;
        loop {
            let query = QUERY_ENDS.iter().any(|end| name.ends_with(end));
            if query || self.words().any(|word| name.ends_with(word)) {
                return true;
            }
            let shorter = MODIFIERS.iter().find_map(|word| name.strip_suffix(word.as_bytes()));
            let last = |last: &u8| last.is_ascii_digit() || *last == b't';
            let fewer = || name.split_last().filter(|(letter, _)| last(letter));
            match shorter.or_else(|| fewer().map(|(_, rest)| rest)) {
                Some(rest) => name = rest,
                None => return false,
            }
        }
    }

    /// All folded words of sensitive keys, built-in and configured.
    pub(super) fn words(&self) -> impl Iterator<Item = &[u8]> {
        self.ends.iter().chain(&self.wholes).chain(&self.extra).map(|word| &**word)
    }

    /// Configured words, folded.
    pub(super) fn extra(&self) -> impl Iterator<Item = &[u8]> {
        self.extra.iter().map(|word| &**word)
    }

    /// Whether the value of this key is secret.
    pub(super) fn is_sensitive(&self, key: &[u8]) -> bool {
        // The last letter almost always rules out a sensitive key.
        let last = key.last().and_then(|last| self.lasts.get(usize::from(*last)));
        if last != Some(&true) || key.len() > MAX_KEY_BYTES || !self.may_be(key) {
            return false;
        }
        let mut buffer = [0; MAX_KEY_BYTES];
        let mut len = 0;
        let letters = key.iter().filter(|byte| !is_separator(**byte));
        for (slot, letter) in buffer.iter_mut().zip(letters) {
            *slot = letter.to_ascii_lowercase();
            len += 1;
        }
        let mut name = buffer.get(..len).unwrap_or_default();
        for _ in 0..=MAX_MODIFIERS {
            if self.names_secret(name) {
                return true;
            }
            name = without_digits(name);
            if self.names_secret(name) {
                return true;
            }
            let shorter = MODIFIERS.iter().find_map(|word| name.strip_suffix(word.as_bytes()));
            let Some(shorter) = shorter.filter(|shorter| !shorter.is_empty()) else { return false };
            name = shorter;
        }
        false
    }

    fn may_be(&self, key: &[u8]) -> bool {
        let letters = key.iter().rev().filter(|byte| !is_separator(**byte));
        let letters = letters.skip_while(|byte| byte.is_ascii_digit());
        // A configured key may itself end with digits.
        let exact = key.iter().rev().filter(|byte| !is_separator(**byte));
        let digit = key.last().is_some_and(u8::is_ascii_digit);
        let known = |tail: u32| self.tails.binary_search(&tail).is_ok();
        self.any_tail || known(tail(letters)) || (digit && known(tail(exact)))
    }

    fn names_secret(&self, name: &[u8]) -> bool {
        let ends = |words: &[Box<[u8]>]| words.iter().any(|word| name.ends_with(word));
        let harmless = || HARMLESS.iter().any(|word| name.ends_with(word.as_bytes()));
        ends(&self.extra)
            || self.wholes.iter().any(|word| name == &**word)
            || (ends(&self.ends) && !harmless())
    }
}

/// Folds a key for comparison: lower case, without separators.
pub(super) fn fold(key: &[u8]) -> Box<[u8]> {
    let letters = key.iter().filter(|byte| !is_separator(**byte));
    letters.map(u8::to_ascii_lowercase).collect()
}

pub(super) const fn is_separator(byte: u8) -> bool {
    matches!(byte, b'_' | b'-' | b' ' | b'.')
}

fn without_digits(name: &[u8]) -> &[u8] {
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    name.get(..name.len() - digits).unwrap_or_default()
}

/// Packs the last letters of a word in lower case. The letters are given in reverse order.
fn tail<'a>(letters: impl Iterator<Item = &'a u8>) -> u32 {
    letters.take(TAIL).fold(0, |tail, letter| tail << 8 | u32::from(letter.to_ascii_lowercase()))
}

/// Number of bytes before an option that are searched for its command.
const MAX_COMMAND_BYTES: usize = 512;

/// Programs, and their short options that take a password.
const PROGRAMS: &[(&str, &[u8])] = &[
    ("sshpass", b"p"),
    ("mysql", b"p"),
    ("mysqldump", b"p"),
    ("mysqladmin", b"p"),
    ("mysqlimport", b"p"),
    ("mariadb", b"p"),
    ("mariadb-dump", b"p"),
    ("mongo", b"p"),
    ("mongosh", b"p"),
    ("mongodump", b"p"),
    ("mongorestore", b"p"),
    ("mongoexport", b"p"),
    ("mongoimport", b"p"),
    ("login", b"p"),
    ("cqlsh", b"p"),
    ("beeline", b"p"),
    ("rabbitmqadmin", b"p"),
    ("redis-cli", b"a"),
    ("ldapsearch", b"w"),
    ("ldapadd", b"w"),
    ("ldapmodify", b"w"),
    ("zip", b"P"),
    ("unzip", b"P"),
    ("7z", b"p"),
    ("7za", b"p"),
    ("mosquitto_pub", b"P"),
    ("mosquitto_sub", b"P"),
    ("ipmitool", b"P"),
    ("sqlcmd", b"P"),
    ("bcp", b"P"),
    ("curl", b"uU"),
    ("http", b"a"),
    ("https", b"a"),
    ("xh", b"a"),
];
/// All letters of [`PROGRAMS`].
pub(super) const LETTERS: &[u8] = b"puUPaw";
/// Options that take a user name, optionally with a password after a colon.
const USERS: &[&[u8]] =
    &[b"-u", b"-U", b"--user", b"--username", b"--proxy-user", b"--userpwd", b"--login"];
/// Long options that end like a key but take no secret.
const NO_SECRET: &[&[u8]] = &[b"no-", b"ask-", b"prompt-", b"without-"];

/// Whether a long option takes a user name.
pub(super) fn is_user(name: &[u8]) -> bool {
    USERS.iter().any(|user| user.strip_prefix(b"--") == Some(name))
}

/// Kind of value after an option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum OptionValue {
    #[default]
    Any,
    Secret,
    /// A password, unless it looks like a port or a path.
    Password,
    /// A user name, optionally with a password.
    User,
    /// A secret in the option itself, after this number of bytes.
    Attached(usize),
}

impl OptionValue {
    /// Whether the value after the option is secret. If `cut`, the value may continue.
    pub(super) fn takes(self, value: &[u8], cut: bool) -> bool {
        match self {
            Self::Any | Self::Attached(_) => false,
            // The value is missing, or another option follows.
            _ if value.is_empty() || value.starts_with(b"--") => false,
            Self::Secret => true,
            Self::Password => {
                let path = value.first().is_some_and(|byte| b"/.~-$".contains(byte));
                let port = |byte: &u8| byte.is_ascii_digit() || b":./-".contains(byte);
                !path && !value.iter().all(port)
            }
            Self::User => match value.iter().position(|byte| *byte == b':') {
                Some(colon) => {
                    let password = value.get(colon + 1..).unwrap_or_default();
                    let ids = |byte: &u8| byte.is_ascii_digit() || *byte == b':';
                    !password.is_empty() && !password.starts_with(b"//") && !value.iter().all(ids)
                }
                None => cut,
            },
        }
    }
}

/// Known part of a command.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Command {
    /// Short options that take a password.
    letters: &'static [u8],
    /// Whether a user name was given.
    user: bool,
    /// Whether a word occurred that is not an option, and thus possibly a program.
    word: bool,
}

impl Command {
    /// Reads the command before an option at the end of `text`.
    pub(super) fn before(text: &[u8]) -> Self {
        let from = text.len().saturating_sub(MAX_COMMAND_BYTES);
        let text = text.get(from..).unwrap_or_default();
        let ends = |byte: &u8| matches!(byte, b';' | b'|' | b'&' | b'\n' | b'(' | b'`' | b'"');
        let start = text.iter().rposition(ends).map_or(0, |at| at + 1);
        let mut command = Self::default();
        let line = text.get(start..).unwrap_or_default();
        for argument in line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()) {
            command.add(argument.trim_ascii());
        }
        command
    }

    /// Processes one argument.
    pub(super) fn add(&mut self, argument: &[u8]) {
        if argument.first() == Some(&b'-') {
            let name = argument.split(|byte| *byte == b'=').next().unwrap_or_default();
            self.user |= USERS.contains(&name);
            return;
        }
        let program = argument.rsplit(|byte| !is_word(*byte)).find(|part| !part.is_empty());
        let Some(program) = program else { return };
        self.word = true;
        let known = PROGRAMS.iter().find(|(name, _)| name.as_bytes() == program);
        if let Some((_, letters)) = known {
            self.letters = letters;
        }
    }

    /// Kind of value that follows `option`.
    pub(super) fn next(self, option: &[u8], keys: &Keys) -> OptionValue {
        let Some(name) = option.strip_prefix(b"-") else { return OptionValue::Any };
        if let Some(long) = name.strip_prefix(b"-") {
            let harmless = NO_SECRET.iter().any(|begin| long.starts_with(begin));
            return match keys.is_sensitive(long) && !harmless {
                true => OptionValue::Secret,
                false if USERS.contains(&option) => OptionValue::User,
                false => OptionValue::Any,
            };
        }
        let Some((letter, rest)) = name.split_first() else { return OptionValue::Any };
        let known = self.letters.contains(letter);
        match (known, rest.is_empty()) {
            (true, true) => OptionValue::Secret,
            _ if keys.is_sensitive(name) => OptionValue::Secret,
            (true, false) => OptionValue::Attached(2),
            (false, true) if *letter == b'p' && (self.user || !self.word) => OptionValue::Password,
            (false, true) if *letter == b'u' => OptionValue::User,
            (false, _) => OptionValue::Any,
        }
    }
}
