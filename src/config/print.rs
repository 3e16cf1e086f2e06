//! `serve --print-config`: the effective settings as TOML that can be saved and used, each with its meaning above it.

use std::fmt::Write as _;

use basalt_query::Setting;
use toml::{Table, Value};

use super::load::variable;
use super::{ColdSection, Config, Field, GroupsSection, LogSection, QuerySection, ServerSection};

const HEAD: &str = "\
# The configuration of a Basalt server. Settings come from this file (`basalt serve --config FILE`), are overridden by
# the variables named below, and those by flags (`--data`, `--listen`, `--set section.name=value`).
";

const DATA_DIR: Field = Field {
    name: "data_dir",
    doc: &[
        " Folder of everything the server keeps: segments, Parquet files, offsets of groups. One server at a time",
        " may have it open.",
    ],
    range: None,
};

const LISTEN: Field = Field {
    name: "listen",
    doc: &[
        " Addresses, as IP:PORT, at which every protocol is served; port 0 takes a free one. There is no",
        " authentication yet: do not listen where strangers can reach it.",
    ],
    range: None,
};

const TOP: [Field; 2] = [DATA_DIR, LISTEN];

/// Name, meaning and settings of each section.
const SECTIONS: [(&str, &[&str], &[Field]); 5] = [
    ("log", LogSection::DOC, LogSection::FIELDS),
    ("cold", ColdSection::DOC, ColdSection::FIELDS),
    ("server", ServerSection::DOC, ServerSection::FIELDS),
    ("groups", GroupsSection::DOC, GroupsSection::FIELDS),
    ("query", QuerySection::DOC, QuerySection::FIELDS),
];

impl Config {
    /// The effective settings as `sys.settings` shows them, in the order of [`Config::to_commented_toml`].
    pub(crate) fn settings(&self) -> impl Iterator<Item = Setting> {
        let table = Table::try_from(self).unwrap_or_default();
        let top = TOP.into_iter().map(|field| ("", field));
        let sections = SECTIONS
            .into_iter()
            .flat_map(|(section, _, fields)| fields.iter().map(move |field| (section, *field)));
        top.chain(sections).filter_map(move |(section, field)| {
            let values = match section {
                "" => &table,
                section => table.get(section)?.as_table()?,
            };
            let value = match values.get(field.name)? {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let doc: Vec<_> = field.doc.iter().map(|line| line.trim()).collect();
            Some(Setting {
                name: key(section, &field),
                value,
                description: doc.join(" "),
            })
        })
    }

    /// The settings as commented TOML, which [`Config::load`] reads back to an equal value.
    #[must_use]
    pub fn to_commented_toml(&self) -> String {
        let mut out = String::from(HEAD);
        let table = Table::try_from(self).unwrap_or_default();
        let defaults = Table::try_from(Config::default()).unwrap_or_default();
        for field in TOP {
            push_field(&mut out, "", &field, &table, &defaults);
        }
        for (name, doc, fields) in SECTIONS {
            out.push('\n');
            push_lines(&mut out, doc);
            let _ = writeln!(out, "[{name}]");
            let (Some(Value::Table(values)), Some(Value::Table(defaults))) =
                (table.get(name), defaults.get(name))
            else {
                continue;
            };
            for field in fields {
                push_field(&mut out, name, field, values, defaults);
            }
        }
        out
    }
}

/// The name of a setting with its section.
fn key(section: &str, field: &Field) -> String {
    match section {
        "" => field.name.to_owned(),
        section => format!("{section}.{}", field.name),
    }
}

fn push_lines(out: &mut String, lines: &[&str]) {
    for line in lines {
        let _ = writeln!(out, "#{line}");
    }
}

fn push_field(out: &mut String, section: &str, field: &Field, values: &Table, defaults: &Table) {
    let (Some(value), Some(default)) = (values.get(field.name), defaults.get(field.name)) else {
        return;
    };
    let key = key(section, field);
    out.push('\n');
    push_lines(out, field.doc);
    let _ = write!(out, "# Default: {default}.");
    if let Some((low, high)) = field.range {
        let _ = write!(out, " Accepted: {low} to {high}.");
    }
    let _ = writeln!(out, " Variable: {}.", variable(&key));
    let _ = writeln!(out, "{} = {value}", field.name);
}
