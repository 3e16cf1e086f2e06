//! Layers: defaults, then the file, then `BASALT_*` variables, then flags. Each later one wins, setting by setting.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::Config;

/// Names that start with `BASALT_` and are not settings: flags of the command line that clap reads itself, the filter of
/// the log on stderr, and the data of our own tests.
const NOT_SETTINGS: &[&str] = &[
    "BASALT_CONFIG",
    "BASALT_LOG",
    "BASALT_PASSWORD",
    "BASALT_PASSWORD_FILE",
    "BASALT_SERVER",
    "BASALT_TEST_DATA",
    "BASALT_USER",
];

/// Why a configuration could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read the configuration file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The file is not TOML, or has an unknown setting or one of the wrong type; `source` names setting, line and column.
    #[error("the configuration file {} is wrong (`basalt serve --print-config` shows every setting)", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The setting, and where it stands.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// A variable or a flag has a value of the wrong type.
    #[error("{origin} is {value:?}: it must be {expected}")]
    Value {
        /// The variable or the flag.
        origin: String,
        /// What was given.
        value: String,
        /// What was expected.
        expected: &'static str,
    },
    /// `--set` names something that is no setting.
    #[error(
        "{origin}: there is no setting `{key}` (`basalt serve --print-config` shows every setting)"
    )]
    Unknown {
        /// The flag.
        origin: String,
        /// The name.
        key: String,
    },
    /// The layers together do not make a configuration; `source` names the setting.
    #[error("the settings from variables and flags are wrong")]
    Layers {
        /// The setting.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// Values that cannot work.
    #[error("the configuration cannot work: {}", problems.join("; "))]
    Invalid {
        /// One sentence a setting.
        problems: Vec<String>,
    },
}

impl ConfigError {
    /// Whether it is a flag that is wrong: a mistake in how the command was called.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Value { origin, .. } | Self::Unknown { origin, .. } if origin.starts_with("--"))
    }
}

/// What the command line says.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `--data`.
    pub data_dir: Option<PathBuf>,
    /// `--listen`, any number.
    pub listen: Vec<String>,
    /// `--set section.name=value`, any number.
    pub settings: Vec<String>,
}

/// A configuration and what was odd about its sources.
#[derive(Debug)]
pub struct Loaded {
    /// The validated configuration.
    pub config: Config,
    /// Sentences for the log: `BASALT_*` variables that are no settings. (Not errors: an orchestrator may set such
    /// variables by itself, e.g. `BASALT_SERVICE_HOST`.)
    pub warnings: Vec<String>,
}

impl Config {
    /// Puts the layers together and validates the result.
    ///
    /// # Errors
    /// [`ConfigError`], naming the setting and the file, variable or flag that is wrong.
    pub fn load(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
        overrides: &Overrides,
    ) -> Result<Loaded, ConfigError> {
        let mut warnings = Vec::new();
        let mut table = match file {
            Some(path) => read_file(path)?,
            None => Table::new(),
        };
        let shape = shape();
        let mut environment: Vec<_> = environment.into_iter().collect();
        environment.sort();
        for (name, value) in environment {
            if !name.starts_with("BASALT_") || NOT_SETTINGS.contains(&name.as_str()) {
                continue;
            }
            match keys(&shape).into_iter().find(|key| variable(key) == name) {
                Some(key) => set(
                    &mut table,
                    &shape,
                    &key,
                    &value,
                    &format!("the variable {name}"),
                )?,
                None => warnings.push(format!("the variable {name} is no setting and was ignored")),
            }
        }
        for setting in &overrides.settings {
            let (key, value) = setting.split_once('=').ok_or_else(|| ConfigError::Value {
                origin: "--set".to_owned(),
                value: setting.clone(),
                expected: "section.name=value",
            })?;
            set(
                &mut table,
                &shape,
                key.trim(),
                value.trim(),
                &format!("--set {}", key.trim()),
            )?;
        }
        if let Some(data_dir) = &overrides.data_dir {
            table.insert(
                "data_dir".to_owned(),
                Value::String(data_dir.to_string_lossy().into_owned()),
            );
        }
        if !overrides.listen.is_empty() {
            set(
                &mut table,
                &shape,
                "listen",
                &overrides.listen.join(","),
                "--listen",
            )?;
        }
        let mut config: Config = table.try_into().map_err(|source| ConfigError::Layers {
            source: Box::new(source),
        })?;
        // A path need not be UTF-8, TOML must be.
        if let Some(data_dir) = &overrides.data_dir {
            config.data_dir.clone_from(data_dir);
        }
        config.validate()?;
        Ok(Loaded { config, warnings })
    }
}

fn read_file(path: &Path) -> Result<Table, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    // Read as a whole `Config` first: only then does an error know line and column.
    let wrong = |source| ConfigError::File {
        path: path.to_owned(),
        source: Box::new(source),
    };
    toml::from_str::<Config>(&text).map_err(wrong)?;
    toml::from_str(&text).map_err(wrong)
}

/// Every setting with its default, as TOML: says which settings exist and of which type they are.
fn shape() -> Table {
    // The defaults are plain integers, strings, booleans and lists; a test turns them into TOML.
    Table::try_from(Config::default()).unwrap_or_default()
}

/// `data_dir`, `log.segment_bytes`, ...
pub(super) fn keys(shape: &Table) -> Vec<String> {
    let mut keys = Vec::new();
    for (name, value) in shape {
        match value {
            Value::Table(section) => keys.extend(section.keys().map(|key| format!("{name}.{key}"))),
            _ => keys.push(name.clone()),
        }
    }
    keys
}

/// `log.segment_bytes` is set by `BASALT_LOG_SEGMENT_BYTES`.
pub(super) fn variable(key: &str) -> String {
    format!("BASALT_{}", key.replace('.', "_").to_uppercase())
}

fn set(
    table: &mut Table,
    shape: &Table,
    key: &str,
    text: &str,
    origin: &str,
) -> Result<(), ConfigError> {
    let unknown = || ConfigError::Unknown {
        origin: origin.to_owned(),
        key: key.to_owned(),
    };
    let (section, name) = match key.split_once('.') {
        Some((section, name)) => (Some(section), name),
        None => (None, key),
    };
    let default = match section {
        Some(section) => shape.get(section).and_then(|table| table.get(name)),
        None => shape.get(name).filter(|value| !value.is_table()),
    }
    .ok_or_else(unknown)?;
    let value = parse(default, text, origin)?;
    match section {
        Some(section) => {
            let entry = table
                .entry(section)
                .or_insert_with(|| Value::Table(Table::new()));
            entry
                .as_table_mut()
                .ok_or_else(unknown)?
                .insert(name.to_owned(), value);
        }
        None => {
            table.insert(name.to_owned(), value);
        }
    }
    Ok(())
}

/// Reads `text` as the type that the default has.
fn parse(default: &Value, text: &str, origin: &str) -> Result<Value, ConfigError> {
    let wrong = |expected| ConfigError::Value {
        origin: origin.to_owned(),
        value: text.to_owned(),
        expected,
    };
    match default {
        Value::Integer(_) => text
            .replace('_', "")
            .parse()
            .ok()
            .filter(|number: &i64| *number >= 0)
            .map(Value::Integer)
            .ok_or_else(|| wrong("a whole number")),
        Value::Boolean(_) => text
            .parse()
            .map(Value::Boolean)
            .map_err(|_| wrong("true or false")),
        Value::Array(_) => Ok(Value::Array(
            text.split(',')
                .map(|item| Value::String(item.trim().to_owned()))
                .collect(),
        )),
        _ => Ok(Value::String(text.to_owned())),
    }
}
