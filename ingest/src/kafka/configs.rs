//! Topic settings in Kafka's words: described, and changed where the log has such a setting.
//!
//! | Kafka | here |
//! |---|---|
//! | `retention.ms`, `retention.bytes` | `retention_age_ms`, `retention_bytes`; -1 is no limit |
//! | `segment.bytes` | `segment_bytes` |
//! | `cleanup.policy`, `delete.retention.ms`, `min.cleanable.dirty.ratio`, `min.compaction.lag.ms` | the same with `_` |
//! | `basalt.` and a name | the topic setting of that name (`durability`, `hot_bytes`, `hot_age_ms`, `shred_json`, `schema`) |
//! | all others in [`FIXED`] | what is always so: named, so that clients find them, and refused when set to anything else |

use std::collections::BTreeSet;

use basalt_log::{CleanupPolicy, Ratio, TopicConfig};
use basalt_proto::TopicName;
use basalt_proto::session::ConfigPairs;
use kafka_protocol::messages::alter_configs_response::AlterConfigsResourceResponse as AllAlteredResponse;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
use kafka_protocol::messages::{
    AlterConfigsRequest, AlterConfigsResponse, DescribeConfigsRequest, DescribeConfigsResponse,
    IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
};
use kafka_protocol::protocol::StrBytes;

use super::error::{Failure, code};
use super::node::{NODE_ID, Node};
use super::request::Request;
use super::response::message;
use crate::error::Refusal;
use crate::shared::Shared;

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
/// Where a value comes from.
const FROM_TOPIC: i8 = 1;
const FROM_SERVER: i8 = 4;
const FROM_DEFAULT: i8 = 5;
/// What a value is.
const STRING: i8 = 2;
const INT: i8 = 3;
const LONG: i8 = 5;
const DOUBLE: i8 = 6;
const LIST: i8 = 7;
/// What to do with it.
const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;
/// The one setting that is a list and can be changed.
const CLEANUP_POLICY: &str = "cleanup.policy";
/// What our own settings are called in Kafka.
const OWN_PREFIX: &str = "basalt.";
const OWN: [&str; 5] = [
    "durability",
    "hot_bytes",
    "hot_age_ms",
    "shred_json",
    "schema",
];
/// Settings that both have: Kafka's name, ours, and the type.
const SHARED: [(&str, &str, i8); 8] = [
    (CLEANUP_POLICY, "cleanup_policy", LIST),
    ("delete.retention.ms", "delete_retention_ms", LONG),
    (MAX_MESSAGE_BYTES, "max_message_bytes", INT),
    (
        "min.cleanable.dirty.ratio",
        "min_cleanable_dirty_ratio",
        DOUBLE,
    ),
    ("min.compaction.lag.ms", "min_compaction_lag_ms", LONG),
    ("retention.bytes", "retention_bytes", LONG),
    ("retention.ms", "retention_age_ms", LONG),
    ("segment.bytes", "segment_bytes", INT),
];
/// What is always so.
const FIXED: [(&str, &str, i8); 3] = [
    ("compression.type", "producer", STRING),
    ("message.timestamp.type", "CreateTime", STRING),
    ("min.insync.replicas", "1", INT),
];
const MAX_MESSAGE_BYTES: &str = "max.message.bytes";
const NO_LIMIT: &str = "-1";
/// Of the broker. Tools take the version for what they may ask of it.
const OF_BROKER: [(&str, &str, i8); 2] = [
    ("default.replication.factor", "1", INT),
    ("inter.broker.protocol.version", "3.0", STRING),
];

/// A setting of Kafka's as one of ours: its name and value there, or nothing where it is what it is anyway.
///
/// # Errors
/// A [`Failure`] for a setting that does not exist, or that cannot have this value.
pub(super) fn to_own(
    shared: &Shared,
    name: &str,
    value: &str,
) -> Result<Option<(String, String)>, Failure> {
    let refused = |why: String| Err(Failure::new(code::INVALID_CONFIG, why));
    if let Some((_, own, _)) = SHARED.iter().find(|(kafka, ..)| *kafka == name) {
        let max_bytes = u64::from(shared.config.limits.max_payload_bytes);
        if name == MAX_MESSAGE_BYTES && value.parse().is_ok_and(|bytes: u64| bytes > max_bytes) {
            return refused(format!(
                "`{name}` can be at most {max_bytes}, the server's `log.max_payload_bytes`, not {value}"
            ));
        }
        let is_no_limit = value == NO_LIMIT && name.starts_with("retention.");
        let value = if is_no_limit { "" } else { value };
        return Ok(Some(((*own).to_owned(), value.to_owned())));
    }
    if let Some(own) = name
        .strip_prefix(OWN_PREFIX)
        .filter(|own| OWN.contains(own))
    {
        return Ok(Some((own.to_owned(), value.to_owned())));
    }
    let fixed = FIXED.iter().find(|(kafka, ..)| *kafka == name);
    match fixed.map(|(_, value, _)| *value) {
        Some(fixed) if value == fixed || value.is_empty() => Ok(None),
        Some(fixed) => refused(format!(
            "`{name}` can only be `{fixed}` here, not `{value}`"
        )),
        None => refused(format!("there is no setting `{name}`")),
    }
}

/// One setting as it is described.
struct Setting {
    name: String,
    value: Option<String>,
    of_topic: bool,
    read_only: bool,
    kind: i8,
}

fn value_of(pairs: &ConfigPairs, own: &str) -> Option<String> {
    let pair = pairs.iter().find(|(key, _)| key == own);
    pair.map(|(_, value)| value.clone())
}

/// All settings of a topic.
fn of_topic(shared: &Shared, config: &TopicConfig) -> Vec<Setting> {
    let (pairs, server_pairs) = (
        config.to_pairs(),
        shared.log.log().config().topic_defaults.to_pairs(),
    );
    let set = |own: &str| value_of(&pairs, own);
    // A topic has the server's settings from its making on: what is the same is not its own.
    let is_own = |own: &str| set(own) != value_of(&server_pairs, own);
    let default = |own: &str| match own {
        "segment_bytes" => shared.log.log().config().segment_bytes.to_string(),
        "cleanup_policy" => CleanupPolicy::default().to_string(),
        "delete_retention_ms" => TopicConfig::DELETE_RETENTION.as_millis().to_string(),
        "min_cleanable_dirty_ratio" => Ratio::HALF.to_string(),
        "min_compaction_lag_ms" => "0".to_owned(),
        "max_message_bytes" => shared.config.limits.max_payload_bytes.to_string(),
        _ => NO_LIMIT.to_owned(),
    };
    let fixed = |name: &str, value: &str, kind| Setting {
        name: name.to_owned(),
        value: Some(value.to_owned()),
        of_topic: false,
        read_only: true,
        kind,
    };
    let mut settings: Vec<Setting> = FIXED
        .map(|(name, value, kind)| fixed(name, value, kind))
        .into();
    settings.extend(SHARED.map(|(name, own, kind)| Setting {
        name: name.to_owned(),
        value: set(own).or_else(|| Some(default(own))),
        of_topic: is_own(own),
        read_only: false,
        kind,
    }));
    settings.extend(OWN.map(|own| Setting {
        name: format!("{OWN_PREFIX}{own}"),
        value: set(own),
        of_topic: is_own(own),
        read_only: false,
        kind: STRING,
    }));
    settings.sort_by(|a, b| a.name.cmp(&b.name));
    settings
}

fn of_broker(shared: &Shared, node: &Node) -> Vec<Setting> {
    let setting = |name: &str, value: String, kind| Setting {
        name: name.to_owned(),
        value: Some(value),
        of_topic: false,
        read_only: true,
        kind,
    };
    let is_v6 = node.host.contains(':');
    let (before, behind) = if is_v6 { ("[", "]") } else { ("", "") };
    let listener = format!("PLAINTEXT://{before}{}{behind}:{}", node.host, node.port);
    let groups = &shared.config.groups;
    let mut settings = vec![setting("advertised.listeners", listener, STRING)];
    // Of the limits of groups, those that clients look at.
    for (name, value) in [
        (
            "group.max.session.timeout.ms",
            groups.max_session.as_millis(),
        ),
        (
            "group.min.session.timeout.ms",
            groups.min_session.as_millis(),
        ),
        (
            "offset.metadata.max.bytes",
            groups.max_metadata_bytes as u128,
        ),
        (
            "transaction.max.timeout.ms",
            shared.config.max_transaction.as_millis(),
        ),
    ] {
        settings.push(setting(name, value.to_string(), INT));
    }
    settings.extend(OF_BROKER.map(|(name, value, kind)| setting(name, value.to_owned(), kind)));
    settings
}

impl Setting {
    fn describe(self, resource: i8, with_synonyms: bool) -> DescribeConfigsResourceResult {
        let text = |text: &str| StrBytes::from_string(text.to_owned());
        let source = match (self.of_topic, resource) {
            (true, _) => FROM_TOPIC,
            (false, BROKER) => FROM_SERVER,
            (false, _) => FROM_DEFAULT,
        };
        let value = self.value.as_deref().map(text);
        let synonym = DescribeConfigsSynonym::default()
            .with_name(text(&self.name))
            .with_value(value.clone())
            .with_source(source);
        let synonyms = (with_synonyms && value.is_some()).then_some(synonym);
        DescribeConfigsResourceResult::default()
            .with_name(text(&self.name))
            .with_value(value)
            .with_read_only(self.read_only)
            .with_config_source(source)
            .with_config_type(self.kind)
            .with_synonyms(synonyms.into_iter().collect())
    }
}

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) fn describe(
    shared: &Shared,
    node: &Node,
    request: &Request<'_>,
) -> Result<Vec<u8>, Refusal> {
    let asked: DescribeConfigsRequest = request.decode()?;
    // Each once: what it has is told in full for each time that it is named.
    let mut asked_for = BTreeSet::new();
    let resources = asked.resources.into_iter();
    let resources = resources.filter(|resource| {
        asked_for.insert((resource.resource_type, resource.resource_name.clone()))
    });
    let results = resources.map(|resource| {
        let (kind, name) = (resource.resource_type, resource.resource_name);
        let result = DescribeConfigsResult::default()
            .with_error_message(None)
            .with_resource_type(kind)
            .with_resource_name(name.clone());
        let settings = match kind {
            TOPIC => topic_config(shared, &name).map(|config| of_topic(shared, &config)),
            BROKER if is_this_broker(&name) => Ok(of_broker(shared, node)),
            _ => Err(no_such_resource(kind, &name)),
        };
        let keys = resource.configuration_keys;
        let wanted = |setting: &Setting| {
            // No keys at all stand for every one.
            let named = |keys: &Vec<StrBytes>| {
                keys.is_empty() || keys.iter().any(|key| **key == *setting.name)
            };
            keys.as_ref().is_none_or(named)
        };
        match settings {
            Ok(settings) => {
                let settings = settings.into_iter().filter(wanted);
                let described =
                    settings.map(|setting| setting.describe(kind, asked.include_synonyms));
                result.with_configs(described.collect())
            }
            Err(failure) => result
                .with_error_code(failure.code)
                .with_error_message(Some(StrBytes::from_string(failure.message))),
        }
    });
    let body = DescribeConfigsResponse::default().with_results(results.collect());
    message(&request.head, &body)
}

fn topic_config(shared: &Shared, name: &str) -> Result<TopicConfig, Failure> {
    let name = TopicName::new(name).map_err(Refusal::from)?;
    Ok(shared.topic(&name)?.config())
}

/// The empty name is the default of all brokers.
fn is_this_broker(name: &str) -> bool {
    name.is_empty() || name.parse() == Ok(NODE_ID.0)
}

fn no_such_resource(kind: i8, name: &str) -> Failure {
    let message = format!("resources of type {kind} have no settings here, `{name}` has none");
    Failure::new(code::INVALID_REQUEST, message)
}

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) async fn alter(shared: &Shared, request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
    let asked: IncrementalAlterConfigsRequest = request.decode()?;
    let mut responses = Vec::with_capacity(asked.resources.len());
    for resource in asked.resources {
        let altered = alter_resource(shared, &resource, asked.validate_only).await;
        let response = AlterConfigsResourceResponse::default()
            .with_error_message(None)
            .with_resource_type(resource.resource_type)
            .with_resource_name(resource.resource_name);
        responses.push(match altered {
            Ok(()) => response,
            Err(failure) => response
                .with_error_code(failure.code)
                .with_error_message(Some(StrBytes::from_string(failure.message))),
        });
    }
    let body = IncrementalAlterConfigsResponse::default().with_responses(responses);
    message(&request.head, &body)
}

/// As [`alter`], in the words of the API before it: what is not named goes back to its default, but for our own settings.
///
/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) async fn alter_all(shared: &Shared, request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
    let asked: AlterConfigsRequest = request.decode()?;
    let mut responses = Vec::with_capacity(asked.resources.len());
    for resource in asked.resources {
        let set = |name: &StrBytes, value: &Option<StrBytes>, operation| {
            AlterableConfig::default()
                .with_name(name.clone())
                .with_value(value.clone())
                .with_config_operation(operation)
        };
        let named = resource.configs.iter();
        let mut configs: Vec<_> = named
            .map(|config| set(&config.name, &config.value, SET))
            .collect();
        for (name, ..) in SHARED {
            if !resource.configs.iter().any(|config| *config.name == *name) {
                configs.push(set(&StrBytes::from_static_str(name), &None, DELETE));
            }
        }
        let changes = AlterConfigsResource::default()
            .with_resource_type(resource.resource_type)
            .with_resource_name(resource.resource_name.clone())
            .with_configs(configs);
        let altered = alter_resource(shared, &changes, asked.validate_only).await;
        let response = AllAlteredResponse::default()
            .with_error_message(None)
            .with_resource_type(resource.resource_type)
            .with_resource_name(resource.resource_name);
        responses.push(match altered {
            Ok(()) => response,
            Err(failure) => response
                .with_error_code(failure.code)
                .with_error_message(Some(StrBytes::from_string(failure.message))),
        });
    }
    let body = AlterConfigsResponse::default().with_responses(responses);
    message(&request.head, &body)
}

async fn alter_resource(
    shared: &Shared,
    resource: &AlterConfigsResource,
    validate_only: bool,
) -> Result<(), Failure> {
    if resource.resource_type != TOPIC {
        return Err(no_such_resource(
            resource.resource_type,
            &resource.resource_name,
        ));
    }
    let config = topic_config(shared, &resource.resource_name)?;
    let defaults = shared.log.log().config().topic_defaults.to_pairs();
    let mut pairs = ConfigPairs::new();
    for (at, change) in resource.configs.iter().enumerate() {
        let before = &resource.configs[..at];
        if before.iter().any(|other| other.name == change.name) {
            let message = format!("the request changes `{}` more than once", change.name);
            return Err(Failure::new(code::INVALID_REQUEST, message));
        }
        let value = match (change.config_operation, &change.value) {
            (DELETE, _) => String::new(),
            (SET, Some(value)) => value.to_string(),
            (APPEND | SUBTRACT, Some(value)) if &*change.name == CLEANUP_POLICY => {
                let adds = change.config_operation == APPEND;
                changed_list(&config.cleanup_policy.to_string(), value, adds)
            }
            (operation, _) => {
                let message = format!(
                    "`{}` cannot be changed by operation {operation} without a list to add to",
                    change.name
                );
                return Err(Failure::new(code::INVALID_CONFIG, message));
            }
        };
        let own = to_own(shared, &change.name, &value)?;
        pairs.extend(own.map(|(own, value)| match change.config_operation {
            // Back to what a topic has that is made now.
            DELETE => (own.clone(), value_of(&defaults, &own).unwrap_or_default()),
            _ => (own, value),
        }));
    }
    check(&config, &pairs)?;
    if validate_only || pairs.is_empty() {
        return Ok(());
    }
    let name = TopicName::new(&resource.resource_name).map_err(Refusal::from)?;
    Ok(shared.topics.alter(name, pairs).await?)
}

/// A list with some items more, or less; what is nothing then is refused as such.
fn changed_list(list: &str, items: &str, adds: bool) -> String {
    if adds {
        return format!("{list},{items}");
    }
    let taken: Vec<_> = items.split(',').map(str::trim).collect();
    let left: Vec<_> = list
        .split(',')
        .filter(|item| !taken.contains(item))
        .collect();
    match left.is_empty() {
        // The empty text would stand for the default.
        true => ",".to_owned(),
        false => left.join(","),
    }
}

/// Whether the settings could be made, but for those whose text only others understand.
///
/// # Errors
/// A [`Failure`] that names the setting.
pub(super) fn check(config: &TopicConfig, pairs: &ConfigPairs) -> Result<(), Failure> {
    let pairs = pairs
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()));
    match config.clone().with_pairs(pairs) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::new(code::INVALID_CONFIG, error.to_string())),
    }
}
