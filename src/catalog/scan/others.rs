//! How a tool stands beside the tools of all servers: names that look like another's, texts that name another server's
//! tool. Pure.
//!
//! Which of two tools imitates the other does not depend on which came first: it is the one whose name is written with
//! letters that look like ASCII and are not. Where both are plain (`l` and `1`), both are told of, as low.

use std::collections::HashMap;
use std::sync::Arc;

use unicode_security::skeleton;

use super::{FindingLevel, MAX_FINDINGS, ScanFinding, ScanRule, Scanned};
use crate::catalog::exposed;
use crate::tool::ToolName;

/// What a name looks like: two names with the same look are hard to tell apart.
#[must_use]
pub fn look(name: &str) -> Box<str> {
    let visible: String = name.chars().filter(|letter| !is_unseen(*letter)).collect();
    skeleton(&visible).collect::<String>().into()
}

fn is_unseen(letter: char) -> bool {
    super::hidden::hidden(letter.encode_utf8(&mut [0; 4])).is_some()
}

/// The names of all tools.
#[derive(Debug, Default)]
pub struct Names<'a> {
    by_look: HashMap<&'a str, Vec<&'a ToolName>>,
    servers_of: HashMap<&'a str, Vec<&'a Arc<str>>>,
}

impl<'a> Names<'a> {
    /// Those of the tools given, each with its [`look`].
    #[must_use]
    pub fn of(tools: impl Iterator<Item = (&'a ToolName, &'a str)>) -> Self {
        let mut names = Self::default();
        for (name, look) in tools {
            names.by_look.entry(look).or_default().push(name);
            names.servers_of.entry(&name.tool).or_default().push(&name.server);
        }
        names
    }

    /// What is suspect about a tool beside the others.
    #[must_use]
    pub fn findings(&self, name: &ToolName, look: &str, scanned: &Scanned) -> Vec<ScanFinding> {
        let alike = self.by_look.get(look).into_iter().flatten();
        let mut found: Vec<_> = alike.filter_map(|other| imitates(name, other)).collect();
        for mention in &scanned.mentions {
            if let Some(other) = self.another_servers(name, mention) {
                found.push(ScanFinding {
                    rule: ScanRule::OtherTool,
                    level: FindingLevel::Medium,
                    place: "texts".to_owned(),
                    detail: format!("names '{mention}', a tool of server '{other}'"),
                });
            }
        }
        found.truncate(MAX_FINDINGS);
        found
    }

    /// The server whose tool is named, if it is not the tool's own server that has one of that name.
    fn another_servers(&self, name: &ToolName, mention: &str) -> Option<&'a Arc<str>> {
        let qualified = ToolName::split(mention).or_else(|| exposed::split_name(mention));
        if let Some((server, tool)) = qualified {
            let servers = self.servers_of.get(tool)?;
            return servers.iter().copied().find(|it| ***it == *server && **it != name.server);
        }
        let servers = self.servers_of.get(mention)?;
        match servers.iter().any(|server| **server == name.server) {
            true => None,
            false => servers.first().copied(),
        }
    }
}

fn imitates(name: &ToolName, other: &ToolName) -> Option<ScanFinding> {
    let level = match (name.tool.is_ascii(), other.tool.is_ascii()) {
        _ if name.tool == other.tool => return None,
        (false, true) => FindingLevel::High,
        // The other one is the imitation.
        (true, false) => return None,
        (false, false) => FindingLevel::Medium,
        (true, true) => FindingLevel::Low,
    };
    let place = "name".to_owned();
    let detail = format!("looks like '{other}'");
    Some(ScanFinding { rule: ScanRule::ConfusableName, level, place, detail })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(
        tools: &[&str],
        of: &str,
        mentions: &[&str],
    ) -> Vec<(ScanRule, FindingLevel, String)> {
        let names: Vec<_> = tools.iter().map(|name| ToolName::parse(name).unwrap()).collect();
        let looks: Vec<_> = names.iter().map(|name| look(&name.tool)).collect();
        let all = Names::of(names.iter().zip(looks.iter().map(|look| &**look)));
        let name = ToolName::parse(of).unwrap();
        let mentions = mentions.iter().map(|word| (*word).into()).collect();
        let scanned = Scanned { findings: Vec::new(), mentions };
        let found = all.findings(&name, &look(&name.tool), &scanned);
        found.into_iter().map(|it| (it.rule, it.level, it.detail)).collect()
    }

    #[test]
    fn the_one_with_other_letters_imitates() {
        use FindingLevel::{High, Low};
        // The first letter of the second is Cyrillic.
        let tools = ["a:send_mail", "b:s\u{435}nd_mail", "c:send_mail", "d:item1", "e:iteml"];
        let told =
            |level, other: &str| (ScanRule::ConfusableName, level, format!("looks like '{other}'"));
        let imitation = [told(High, "a:send_mail"), told(High, "c:send_mail")];
        assert_eq!(findings(&tools, "b:s\u{435}nd_mail", &[]), imitation);
        assert_eq!(findings(&tools, "a:send_mail", &[]), []);
        assert_eq!(findings(&tools, "d:item1", &[]), [told(Low, "e:iteml")]);
        assert_eq!(
            findings(&["a:x_y", "b:x\u{200b}_y"], "b:x\u{200b}_y", &[]),
            [told(High, "a:x_y")]
        );
    }

    #[test]
    fn another_servers_tool_that_is_named_is_told_and_ones_own_is_not() {
        let tools = ["a:send_mail", "b:send_mail", "c:read_file"];
        let named = |of: &str, word: &str| findings(&tools, of, &[word]).len();
        assert_eq!(named("c:read_file", "send_mail"), 1);
        assert_eq!(named("a:send_mail", "send_mail"), 0);
        assert_eq!(named("a:send_mail", "b:send_mail"), 1);
        assert_eq!(named("a:send_mail", "a:send_mail"), 0);
        assert_eq!(named("c:read_file", "a__send_mail"), 1);
        assert_eq!(named("c:read_file", "read_mail"), 0);
    }
}
