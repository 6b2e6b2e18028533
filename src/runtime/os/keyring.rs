//! Passwords from the keyring of the logged-in user. Supports any keyring with the Secret Service interface on the
//! session's D-Bus (GNOME's, KDE's).
//!
//! Runs `secret-tool` of libsecret in a child process, because it handles D-Bus and may prompt the user to unlock the
//! keyring. The child is killed after a time in which any user would have finished typing.

use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The program that reads the keyring.
const PROGRAM: &str = "secret-tool";
/// Maximum time for an answer.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// Interval at which the child's exit is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Time after an unanswered request in which the keyring is not asked again; otherwise each of several servers would
/// wait.
const RETRY_AFTER: Duration = Duration::from_secs(30);
/// Maximum size of a password, and of an error text, in bytes: the capacity of a pipe.
const MAX_OUTPUT_BYTES: u64 = 64 << 10;

/// Time of the last unanswered request.
static UNANSWERED_SINCE: Mutex<Option<Instant>> = Mutex::new(None);

/// Returns the password of `user` for `service`, as `secret-tool lookup service S username U` prints it. Blocks for at
/// most [`ANSWER_LIMIT`].
///
/// # Errors
/// The reason in one line, which never quotes a password.
pub fn password(service: &str, user: &str) -> Result<String, String> {
    let unanswered = *UNANSWERED_SINCE.lock();
    if unanswered.is_some_and(|since| since.elapsed() < RETRY_AFTER) {
        return Err("the keyring recently did not answer, or is locked: unlock it".to_owned());
    }
    let child = Command::new(PROGRAM)
        .args(["lookup", "service", service, "username", user])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!(
            "no keyring can be read: {PROGRAM} is not installed (Debian: libsecret-tools, Fedora: libsecret)"
        ),
        _ => format!("no keyring can be read: {PROGRAM} does not start: {error}"),
    })?;
    let status = wait(&mut child, ANSWER_LIMIT).map_err(|error| error.to_string())?;
    let Some(status) = status else {
        *UNANSWERED_SINCE.lock() = Some(Instant::now());
        let limit = ANSWER_LIMIT.as_secs();
        return Err(format!("the keyring did not answer within {limit} s: unlock it"));
    };
    let output = |pipe: Option<&mut dyn Read>| {
        let mut bytes = Vec::new();
        let read = pipe.map_or(Ok(0), |pipe| pipe.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes));
        read.map(|_| bytes)
    };
    let password = output(child.stdout.as_mut().map(|it| it as _));
    let problem = output(child.stderr.as_mut().map(|it| it as _));
    answer(status.success(), &password.unwrap_or_default(), &problem.unwrap_or_default())
}

/// Waits for a child to exit. After `limit`, kills it and returns `None`.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begun.elapsed() >= limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the password, or the reason why there is none, from the child's output.
fn answer(is_success: bool, password: &[u8], problem: &[u8]) -> Result<String, String> {
    let problem = String::from_utf8_lossy(problem);
    let problem = problem.lines().next().unwrap_or_default().trim();
    let problem = problem.strip_prefix(PROGRAM).unwrap_or(problem).trim_start_matches([':', ' ']);
    match std::str::from_utf8(password) {
        Ok(password) if is_success && !password.is_empty() => Ok(password.to_owned()),
        Err(_) if is_success => Err("the keyring's entry is not text".to_owned()),
        _ if problem.is_empty() => {
            Err("the keyring has no entry of that service and user name, or is locked".to_owned())
        }
        _ => Err(format!("the keyring cannot be read, or is locked: {problem}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_the_password_or_a_reason_without_it() {
        for (is_success, password, problem, expected) in [
            (true, &b"p w\n"[..], "", Ok("p w\n")),
            (true, b"p", "secret-tool: a warning", Ok("p")),
            (true, b"\xff", "", Err("is not text")),
            (true, b"", "", Err("has no entry")),
            (false, b"", "", Err("has no entry")),
            (false, b"p", "", Err("has no entry")),
            (
                false,
                b"",
                "secret-tool: Cannot autolaunch D-Bus\nmore",
                Err(": Cannot autolaunch D-Bus"),
            ),
        ] {
            match (answer(is_success, password, problem.as_bytes()), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(reason), Err(part)) => {
                    assert!(reason.contains(part) && !reason.contains("more"), "{reason}");
                }
                (found, expected) => panic!("{found:?} instead of {expected:?}"),
            }
        }
    }

    #[test]
    fn child_that_does_not_end_is_killed() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert_eq!(wait(&mut child, Duration::ZERO).unwrap(), None);
        assert!(child.try_wait().unwrap().is_some(), "it was killed and waited for");
        let mut child = Command::new("true").spawn().unwrap();
        assert!(wait(&mut child, Duration::from_secs(60)).unwrap().is_some());
    }
}
