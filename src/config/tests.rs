use super::load::{keys, variable};
use super::*;

fn load(
    file: Option<&str>,
    environment: &[(&str, &str)],
    overrides: &Overrides,
) -> Result<Loaded, ConfigError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("basalt.toml");
    if let Some(text) = file {
        std::fs::write(&path, text).unwrap();
    }
    let environment = environment
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Config::load(file.map(|_| path.as_path()), environment, overrides)
}

/// An error with all its sources, as the command line prints it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(next) = source {
        text.push_str(": ");
        text.push_str(&next.to_string());
        source = next.source();
    }
    text
}

#[test]
fn the_defaults_are_valid() {
    Config::default().validate().unwrap();
}

#[test]
fn clients_are_told_a_host_and_a_port_or_where_they_came_in() {
    let advertised = |text: &str| {
        let mut config = Config::default();
        config.server.advertised = text.to_owned();
        let valid = config.validate().map_err(|error| chain(&error));
        valid.map(|()| config.server_config().advertised)
    };
    let at = |host: &str, port| {
        let host = host.to_owned();
        Ok(Some(basalt_ingest::Advertised { host, port }))
    };
    assert_eq!(advertised(""), Ok(None));
    assert_eq!(
        advertised("basalt.example:19092"),
        at("basalt.example", 19092)
    );
    assert_eq!(advertised("10.0.0.7:9092"), at("10.0.0.7", 9092));
    assert_eq!(advertised("[fd00::1]:9092"), at("fd00::1", 9092));
    for wrong in [
        "basalt.example",
        ":9092",
        "host:0",
        "host:65536",
        "fd00::1:9092",
        "[host]:9092",
        "kafka://host:9092",
        "host:+5",
        "h\u{f6}st:1",
        "host:9092 ",
        "0.0.0.0:9092",
        "[::]:9092",
    ] {
        let refused = advertised(wrong).unwrap_err();
        assert!(
            refused.contains("server.advertised") && refused.contains(wrong),
            "{refused}"
        );
    }
}

#[test]
fn a_flag_wins_over_a_variable_and_a_variable_over_the_file() {
    let file = "data_dir = \"/from/file\"\n[log]\nsegment_bytes = 1000000\nblock_bytes = 5000\nflush_bytes = 70000\n";
    let environment = [
        ("BASALT_LOG_SEGMENT_BYTES", "2_000_000"),
        ("BASALT_LOG_BLOCK_BYTES", "6000"),
    ];
    let overrides = Overrides {
        data_dir: Some("/from/flag".into()),
        listen: vec!["127.0.0.1:1".to_owned(), "[::1]:2".to_owned()],
        settings: vec!["log.segment_bytes=3000000".to_owned()],
    };
    let config = load(Some(file), &environment, &overrides).unwrap().config;
    assert_eq!(config.log.segment_bytes, 3_000_000);
    assert_eq!(config.log.block_bytes, 6000);
    assert_eq!(config.log.flush_bytes, 70_000);
    assert_eq!(config.data_dir, PathBuf::from("/from/flag"));
    assert_eq!(
        config.listen,
        ["127.0.0.1:1".parse().unwrap(), "[::1]:2".parse().unwrap()]
    );
    assert_eq!(config.cold, ColdSection::default());
}

#[test]
fn an_unknown_setting_in_the_file_is_named_with_the_file_and_the_line() {
    let error = load(
        Some("[log]\nsegmnt_bytes = 5\n"),
        &[],
        &Overrides::default(),
    )
    .unwrap_err();
    let text = chain(&error);
    for part in ["basalt.toml", "segmnt_bytes", "line 2"] {
        assert!(text.contains(part), "{part} is missing in: {text}");
    }
}

#[test]
fn a_missing_file_is_named() {
    let error = Config::load(
        Some(std::path::Path::new("/nowhere/basalt.toml")),
        [],
        &Overrides::default(),
    );
    assert!(chain(&error.unwrap_err()).contains("/nowhere/basalt.toml"));
}

#[test]
fn a_value_of_the_wrong_type_names_its_variable() {
    for (name, value) in [
        ("BASALT_LOG_SEGMENT_BYTES", "many"),
        ("BASALT_LOG_AUTO_CREATE_TOPICS", "yes"),
    ] {
        let error = load(None, &[(name, value)], &Overrides::default()).unwrap_err();
        assert!(chain(&error).contains(name), "{error}");
    }
    let error = load(
        None,
        &[("BASALT_LISTEN", "localhost")],
        &Overrides::default(),
    )
    .unwrap_err();
    assert!(chain(&error).contains("listen"), "{}", chain(&error));
}

#[test]
fn a_variable_that_is_no_setting_is_a_warning_and_other_names_are_none_of_our_business() {
    let environment = [
        ("BASALT_SERVICE_HOST", "10.0.0.1"),
        ("BASALT_LOG", "debug"),
        ("HOME", "/root"),
    ];
    let loaded = load(None, &environment, &Overrides::default()).unwrap();
    assert_eq!(loaded.warnings.len(), 1);
    assert!(loaded.warnings[0].contains("BASALT_SERVICE_HOST"));
}

#[test]
fn a_set_flag_that_names_no_setting_is_refused() {
    for setting in [
        "log.nothing=1",
        "nothing.segment_bytes=1",
        "log=1",
        "log.segment_bytes",
    ] {
        let overrides = Overrides {
            settings: vec![setting.to_owned()],
            ..Overrides::default()
        };
        load(None, &[], &overrides).unwrap_err();
    }
}

#[test]
fn every_value_out_of_range_is_reported_with_its_range() {
    let file = "listen = []\n[log]\nsync_threads = 0\n[cold]\nzstd_level = 23\n";
    let text = load(Some(file), &[], &Overrides::default())
        .unwrap_err()
        .to_string();
    for part in [
        "`listen`",
        "`log.sync_threads` is 0",
        "`cold.zstd_level` is 23: it must be between 1 and 22",
    ] {
        assert!(text.contains(part), "{part} is missing in: {text}");
    }
}

#[test]
fn a_request_must_hold_the_largest_frame() {
    let text = load(
        Some("[server]\nmax_request_bytes = 5000000\n"),
        &[],
        &Overrides::default(),
    )
    .unwrap_err();
    assert!(text.to_string().contains("max_request_bytes"));
}

#[test]
fn a_limit_of_hot_bytes_must_hold_two_segments() {
    let text = load(
        Some("[cold]\nhot_limit_bytes = 200000000\n"),
        &[],
        &Overrides::default(),
    )
    .unwrap_err();
    assert!(text.to_string().contains("cold.hot_limit_bytes"), "{text}");
}

#[test]
fn a_store_is_judged_and_a_secret_in_it_is_not_repeated() {
    for (store, expected) in [
        ("bucket", "s3://BUCKET/PREFIX"),
        ("s3://key:hunter2@bucket", "must not hold credentials"),
    ] {
        let environment = [("BASALT_COLD_STORE", store)];
        let text = load(None, &environment, &Overrides::default())
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("`cold.store`") && text.contains(expected),
            "{text}"
        );
        assert!(!text.contains("hunter2"), "{text}");
    }
    let file = "[cold]\nstore = \"s3://bucket/a\"\nstore_endpoint = \"http://minio:9000\"\n";
    let text = load(Some(file), &[], &Overrides::default()).unwrap_err();
    assert!(text.to_string().contains("cold.store_allow_http"), "{text}");
    let allowed = format!("{file}store_allow_http = true\n");
    let config = load(Some(&allowed), &[], &Overrides::default())
        .unwrap()
        .config;
    let store = config.store_config().unwrap();
    assert_eq!(store.url, "s3://bucket/a");
    assert_eq!(store.endpoint, "http://minio:9000");
}

#[test]
fn settings_are_shown_by_full_name_with_their_effective_value_and_meaning() {
    let mut config = Config {
        data_dir: "/a \"b\"\\c".into(),
        ..Config::default()
    };
    config.log.durability = DurabilityLevel::Os;
    let shown: Vec<_> = config.settings().collect();
    let mut names: Vec<_> = shown.iter().map(|setting| setting.name.clone()).collect();
    let mut expected = keys(&toml::Table::try_from(&config).unwrap());
    names.sort_unstable();
    expected.sort_unstable();
    assert_eq!(names, expected);
    let value = |name: &str| {
        let setting = shown.iter().find(|setting| setting.name == name);
        setting.unwrap().value.as_str()
    };
    assert_eq!(value("data_dir"), "/a \"b\"\\c");
    assert_eq!(value("log.durability"), "os");
    assert_eq!(value("query.batch_rows"), "8192");
    assert!(shown.iter().all(|setting| setting.description.len() > 20));
}

#[test]
fn printed_settings_read_back_equal_and_name_every_setting_with_its_variable() {
    let mut config = Config {
        data_dir: "/a \"b\"\\c".into(),
        ..Config::default()
    };
    config.log.durability = DurabilityLevel::Os;
    config.log.auto_create_topics = false;
    let text = config.to_commented_toml();
    assert_eq!(
        load(Some(&text), &[], &Overrides::default())
            .unwrap()
            .config,
        config
    );
    let table = toml::Table::try_from(&config).unwrap();
    let keys = keys(&table);
    assert!(keys.len() > 30);
    for key in keys {
        let name = key.rsplit('.').next().unwrap();
        assert!(
            text.contains(&format!("\n{name} = ")),
            "{key} is not printed"
        );
        assert!(
            text.contains(&format!("Variable: {}.", variable(&key))),
            "{key} has no variable"
        );
    }
}

#[test]
fn every_setting_has_a_variable_of_its_own() {
    let table = toml::Table::try_from(Config::default()).unwrap();
    let variables: Vec<_> = keys(&table).iter().map(|key| variable(key)).collect();
    let distinct: std::collections::BTreeSet<_> = variables.iter().collect();
    assert_eq!(distinct.len(), variables.len());
}
