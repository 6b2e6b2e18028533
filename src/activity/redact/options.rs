//! Passwords on command lines: which options take one, in a text or in a list of arguments. Pure.
//!
//! A long option is known by its name. A short one means something else to each program, so the
//! program's name is looked for, or a user's name beside it.

use super::credentials::is_word;
use super::keys::Keys;

/// A command is looked for in so many bytes before its option.
const MAX_COMMAND_BYTES: usize = 512;

/// Programs, and which of their short options take a password.
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
];
/// All letters of [`PROGRAMS`].
pub(super) const LETTERS: &[u8] = b"puUPaw";
/// Options that take a user's name, with a password after a colon or none.
const USERS: &[&[u8]] =
    &[b"-u", b"-U", b"--user", b"--username", b"--proxy-user", b"--userpwd", b"--login"];
/// Long options that end like a key and take no secret.
const NO_SECRET: &[&[u8]] = &[b"no-", b"ask-", b"prompt-", b"without-"];

/// True for the name of a long option that takes a user's name.
pub(super) fn is_user(name: &[u8]) -> bool {
    USERS.iter().any(|user| user.strip_prefix(b"--") == Some(name))
}

/// What the value after an option is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum OptionValue {
    /// Nothing.
    #[default]
    Any,
    /// A secret.
    Secret,
    /// A password unless it has the form of a port or a path.
    Password,
    /// A user's name, and perhaps a password.
    User,
    /// In the option itself: all but its first bytes, so many, are a secret.
    Attached(usize),
}

impl OptionValue {
    /// True if what comes after the option is secret. Where `cut`, the value may go on.
    pub(super) fn takes(self, value: &[u8], cut: bool) -> bool {
        match self {
            Self::Any | Self::Attached(_) => false,
            // Another option.
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

/// What is known of the command so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Command {
    /// Short options that take a password.
    letters: &'static [u8],
    /// A user's name was given.
    user: bool,
    /// There was a word that is no option: a program, perhaps.
    word: bool,
}

impl Command {
    /// What a text says before an option that stands at its end.
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

    /// Takes up one argument.
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

    /// What `option` says of what comes after it.
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
