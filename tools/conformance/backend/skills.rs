//! The skills of the table (SEP-2640): their files as resources, and the entries and directories that list them.

use std::collections::BTreeMap;

use rmcp::model::{
    DIRECTORY_MIME_TYPE, Resource, SKILL_MD, Skill, SkillFrontmatter, SkillResource, SkillResources,
};
use serde_json::{Value, json};

use crate::offers::read;

const SCHEME: &str = "skill://";

/// Texts by path, such as `git-workflow/SKILL.md`.
pub(crate) struct Skills(pub(crate) BTreeMap<String, String>);

impl Skills {
    /// Entries of all skills, or of the one with that URI.
    pub(crate) fn entries(&self, only: Option<&str>) -> Vec<Skill> {
        let roots = self.0.keys().filter_map(|path| path.strip_suffix(SKILL_MD));
        let entries = roots.map(|root| self.entry(root));
        entries.filter(|skill| only.is_none_or(|uri| skill.uri == uri)).collect()
    }

    fn entry(&self, root: &str) -> Skill {
        let files = self.0.iter().filter(|(path, _)| path.starts_with(root));
        let files = files.map(|(path, text)| {
            SkillResource::from_bytes(format!("{SCHEME}{path}"), text.as_bytes())
        });
        let uri = format!("{SCHEME}{root}{SKILL_MD}");
        let [name, description] = self.frontmatter(root);
        let frontmatter = SkillFrontmatter::new(name, description);
        Skill::new(uri, frontmatter, SkillResources::Files(files.collect()))
    }

    /// `name` and `description` of the skill.
    fn frontmatter(&self, root: &str) -> [&str; 2] {
        let text = &self.0[&format!("{root}{SKILL_MD}")];
        ["name: ", "description: "].map(|key| {
            let mut lines = text.lines();
            lines.find_map(|line| line.strip_prefix(key)).expect("a frontmatter")
        })
    }

    /// Resources of the `SKILL.md` files.
    pub(crate) fn resources(&self) -> impl Iterator<Item = Resource> {
        let roots = self.0.keys().filter_map(|path| path.strip_suffix(SKILL_MD));
        roots.map(|root| {
            let [name, description] = self.frontmatter(root);
            read(&json!({"uri": format!("{SCHEME}{root}{SKILL_MD}"), "name": name,
                "description": description, "mimeType": "text/markdown"}))
        })
    }

    pub(crate) fn contents(&self, uri: &str) -> Option<Value> {
        let text = self.0.get(uri.strip_prefix(SCHEME)?)?;
        Some(json!({"uri": uri, "mimeType": "text/markdown", "text": text}))
    }

    /// Children of a directory; `None` if the URI is not one of a directory.
    pub(crate) fn directory(&self, uri: &str) -> Option<Vec<Resource>> {
        let root = format!("{}/", uri.strip_prefix(SCHEME)?);
        let inside = self.0.keys().filter_map(|path| path.strip_prefix(&root));
        let children: BTreeMap<&str, bool> = inside
            .map(|path| path.split_once('/').map_or((path, false), |(name, _)| (name, true)))
            .collect();
        let resource = |(name, is_directory): (&str, bool)| {
            let kind = if is_directory { DIRECTORY_MIME_TYPE } else { "text/markdown" };
            read(&json!({"uri": format!("{uri}/{name}"), "name": name, "mimeType": kind}))
        };
        (!children.is_empty()).then(|| children.into_iter().map(resource).collect())
    }
}
