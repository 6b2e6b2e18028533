//! A server of the config that is switched on or off in its file, which keeps the rest as it is written.

use std::path::Path;

use thiserror::Error;

use super::edit::{EditedJson, Servers};
use super::file;

/// Why a server is not switched; the file stays as it was.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotSwitched {
    /// The file has none of that name.
    #[error("the config has no such server")]
    Unknown,
    /// The file cannot be read, changed or used so.
    #[error("{0}")]
    Refused(String),
}

/// Switches `server` on or off in the file at `path`, if `usable` has nothing against the text that comes of it; true if
/// that changed the file. Blocks.
///
/// # Errors
/// [`NotSwitched`]
pub fn switch_server(
    path: &Path,
    server: &str,
    on: bool,
    usable: impl Fn(&str) -> Result<(), String>,
) -> Result<bool, NotSwitched> {
    let mut unknown = false;
    let edited = file::edit(path, |text| {
        let json = EditedJson::new(text).map_err(|error| error.to_string())?;
        let next = Servers(&json).switched(server, on).map_err(|error| error.to_string())?;
        let Some(next) = next else {
            unknown = true;
            return Err(NotSwitched::Unknown.to_string());
        };
        usable(next.text())?;
        let is_changed = next.text() != text;
        Ok((is_changed.then(|| next.text().to_owned()), is_changed))
    });
    match edited {
        Ok(changed) => Ok(changed),
        Err(_) if unknown => Err(NotSwitched::Unknown),
        Err(problem) => Err(NotSwitched::Refused(problem.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_switched_in_the_file_and_a_text_that_cannot_be_used_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        let usable = |text: &str| match text.contains("tools_limit") {
            true => Err("tools_limit: is too much".to_owned()),
            false => Ok(()),
        };
        let switch = |server: &str, on| switch_server(&path, server, on, usable);
        let text = "{\n  // mine\n  \"mcpServers\": {\"s\": {\"command\": \"x\"}}\n}\n";
        std::fs::write(&path, text).unwrap();
        assert_eq!(switch("s", true), Ok(false));
        assert_eq!(switch("other", false), Err(NotSwitched::Unknown));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        assert_eq!(switch("s", false), Ok(true));
        let off = std::fs::read_to_string(&path).unwrap();
        assert_eq!(off, text.replace("\"x\"", "\"x\", \"enabled\": false"));
        let bad = off.replace("{\n", "{\n  \"tools_limit\": 0,\n");
        std::fs::write(&path, &bad).unwrap();
        let Err(NotSwitched::Refused(why)) = switch("s", true) else { panic!() };
        assert!(why.contains("tools_limit"), "{why}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), bad);
    }
}
