//! What is served: each API with its versions, and what its requests are made of, so that they can be walked over before
//! anything is decoded (KAF-2).
//!
//! - **KAF-3**: what ApiVersions says is this table, and nothing is served that is not in it.

use kafka_protocol::messages::ApiKey;

/// A piece of a request.
#[derive(Debug)]
pub(super) enum Field {
    /// So many bytes.
    Fixed(usize),
    /// A string, or null.
    Text,
    /// Bytes, or null.
    Blob,
    /// An array of elements of so many bytes.
    Each(usize),
    /// An array of strings.
    Texts,
    /// An array of structs.
    List(&'static [Self]),
    /// A field that is there from the first of these versions to the second.
    In(i16, i16, &'static Self),
}

use Field::{Blob, Each, Fixed, In, List, Text, Texts};

/// Any version from the first on.
const ON: i16 = i16::MAX;

/// One API.
#[derive(Debug)]
pub(super) struct Api {
    pub(super) key: ApiKey,
    /// The versions that are served. Produce is announced from 0 on: older librdkafka compresses nothing otherwise.
    pub(super) first: i16,
    pub(super) last: i16,
    /// The first version with compact lengths and tagged fields.
    flexible_from: i16,
    pub(super) request: &'static [Field],
    /// The body's tagged fields below this number are its struct's own. Only followers send them, and the decoder would believe
    /// what they claim: they are refused.
    pub(super) own_tags: u32,
}

impl Api {
    /// The API of that number, if it is served.
    pub(super) fn of(key: i16) -> Option<&'static Self> {
        APIS.iter().find(|api| api.key as i16 == key)
    }

    pub(super) fn serves(&self, version: i16) -> bool {
        (self.first..=self.last).contains(&version)
    }

    pub(super) const fn is_flexible(&self, version: i16) -> bool {
        version >= self.flexible_from
    }

    /// The first version that is announced.
    pub(super) fn announced_first(&self) -> i16 {
        match self.key {
            ApiKey::Produce => 0,
            _ => self.first,
        }
    }
}

const fn api(
    key: ApiKey,
    versions: (i16, i16),
    flexible_from: i16,
    request: &'static [Field],
) -> Api {
    Api {
        key,
        first: versions.0,
        last: versions.1,
        flexible_from,
        request,
        own_tags: match key {
            // The cluster's id, and the state of a replica.
            ApiKey::Fetch => 2,
            _ => 0,
        },
    }
}

pub(super) const APIS: &[Api] = &[
    // Its requests have a reader of their own, which copies no record.
    api(ApiKey::Produce, (3, 11), 9, &[]),
    api(ApiKey::Fetch, (4, 17), 12, FETCH),
    api(ApiKey::ListOffsets, (1, 8), 6, LIST_OFFSETS),
    api(ApiKey::Metadata, (0, 12), 9, METADATA),
    api(ApiKey::OffsetCommit, (2, 9), 8, OFFSET_COMMIT),
    api(ApiKey::OffsetFetch, (1, 9), 6, OFFSET_FETCH),
    api(ApiKey::FindCoordinator, (0, 4), 3, FIND_COORDINATOR),
    api(ApiKey::JoinGroup, (0, 9), 6, JOIN_GROUP),
    api(ApiKey::Heartbeat, (0, 4), 4, HEARTBEAT),
    api(ApiKey::LeaveGroup, (0, 5), 4, LEAVE_GROUP),
    api(ApiKey::SyncGroup, (0, 5), 4, SYNC_GROUP),
    api(ApiKey::DescribeGroups, (0, 5), 5, DESCRIBE_GROUPS),
    api(ApiKey::ListGroups, (0, 5), 3, LIST_GROUPS),
    api(ApiKey::SaslHandshake, (0, 1), ON, &[Text]),
    api(ApiKey::ApiVersions, (0, 4), 3, API_VERSIONS),
    api(ApiKey::InitProducerId, (0, 4), 2, INIT_PRODUCER_ID),
    api(ApiKey::AddPartitionsToTxn, (0, 3), 3, ADD_PARTITIONS),
    api(ApiKey::AddOffsetsToTxn, (0, 3), 3, ADD_OFFSETS),
    api(ApiKey::EndTxn, (0, 3), 3, END_TXN),
    api(ApiKey::TxnOffsetCommit, (0, 3), 3, TXN_OFFSET_COMMIT),
    api(ApiKey::CreateTopics, (2, 7), 5, CREATE_TOPICS),
    api(ApiKey::DeleteTopics, (1, 6), 4, DELETE_TOPICS),
    api(ApiKey::DeleteRecords, (0, 2), 2, DELETE_RECORDS),
    api(ApiKey::DescribeConfigs, (1, 4), 4, DESCRIBE_CONFIGS),
    api(ApiKey::AlterConfigs, (0, 2), 2, ALTER_ALL_CONFIGS),
    api(ApiKey::SaslAuthenticate, (0, 2), 2, &[Blob]),
    api(ApiKey::CreatePartitions, (0, 3), 2, CREATE_PARTITIONS),
    api(ApiKey::DeleteGroups, (0, 2), 2, DELETE_GROUPS),
    api(ApiKey::IncrementalAlterConfigs, (0, 1), 1, ALTER_CONFIGS),
    api(ApiKey::OffsetDelete, (0, 0), ON, OFFSET_DELETE),
    api(ApiKey::DescribeProducers, (0, 0), 0, DESCRIBE_PRODUCERS),
    api(
        ApiKey::DescribeTransactions,
        (0, 0),
        0,
        DESCRIBE_TRANSACTIONS,
    ),
    api(ApiKey::ListTransactions, (0, 1), 0, LIST_TRANSACTIONS),
    api(ApiKey::DescribeCluster, (0, 1), 0, DESCRIBE_CLUSTER),
    // The first version is of clients that were never to be used in earnest.
    api(
        ApiKey::ConsumerGroupHeartbeat,
        (1, 1),
        0,
        CONSUMER_GROUP_HEARTBEAT,
    ),
    api(
        ApiKey::ConsumerGroupDescribe,
        (0, 1),
        0,
        CONSUMER_GROUP_DESCRIBE,
    ),
];

const API_VERSIONS: &[Field] = &[In(3, ON, &Text), In(3, ON, &Text)];

const INIT_PRODUCER_ID: &[Field] = &[Text, Fixed(4), In(3, ON, &Fixed(8 + 2))];

const METADATA: &[Field] = &[
    List(&[In(10, ON, &Fixed(16)), Text]),
    In(4, ON, &Fixed(1)),
    In(8, 10, &Fixed(1)),
    In(8, ON, &Fixed(1)),
];

const FETCH_PARTITION: &[Field] = &[
    Fixed(4),
    In(9, ON, &Fixed(4)),
    Fixed(8),
    In(12, ON, &Fixed(4)),
    In(5, ON, &Fixed(8)),
    Fixed(4),
];

const FETCH: &[Field] = &[
    In(0, 14, &Fixed(4)),
    Fixed(4 + 4 + 4 + 1),
    In(7, ON, &Fixed(8)),
    List(&[
        In(0, 12, &Text),
        In(13, ON, &Fixed(16)),
        List(FETCH_PARTITION),
    ]),
    In(
        7,
        ON,
        &List(&[In(0, 12, &Text), In(13, ON, &Fixed(16)), Each(4)]),
    ),
    In(11, ON, &Text),
];

const LIST_OFFSETS: &[Field] = &[
    Fixed(4),
    In(2, ON, &Fixed(1)),
    List(&[Text, List(&[Fixed(4), In(4, ON, &Fixed(4)), Fixed(8)])]),
];

const CREATE_TOPICS: &[Field] = &[
    List(&[
        Text,
        Fixed(4 + 2),
        List(&[Fixed(4), Each(4)]),
        List(&[Text, Text]),
    ]),
    Fixed(4 + 1),
];

const DELETE_TOPICS: &[Field] = &[
    In(6, ON, &List(&[Text, Fixed(16)])),
    In(0, 5, &Texts),
    Fixed(4),
];

const DELETE_RECORDS: &[Field] = &[List(&[Text, List(&[Fixed(4 + 8)])]), Fixed(4)];

const DESCRIBE_CONFIGS: &[Field] = &[
    List(&[Fixed(1), Text, Texts]),
    Fixed(1),
    In(3, ON, &Fixed(1)),
];

const ALTER_CONFIGS: &[Field] = &[
    List(&[Fixed(1), Text, List(&[Text, Fixed(1), Text])]),
    Fixed(1),
];

const ALTER_ALL_CONFIGS: &[Field] = &[List(&[Fixed(1), Text, List(&[Text, Text])]), Fixed(1)];

const CREATE_PARTITIONS: &[Field] = &[List(&[Text, Fixed(4), List(&[Each(4)])]), Fixed(4 + 1)];

const DESCRIBE_CLUSTER: &[Field] = &[Fixed(1), In(1, ON, &Fixed(1))];

const FIND_COORDINATOR: &[Field] = &[In(0, 3, &Text), In(1, ON, &Fixed(1)), In(4, ON, &Texts)];

const OFFSET_COMMIT: &[Field] = &[
    Text,
    Fixed(4),
    Text,
    In(7, ON, &Text),
    In(2, 4, &Fixed(8)),
    List(&[Text, List(&[Fixed(4 + 8), In(6, ON, &Fixed(4)), Text])]),
];

const OFFSET_FETCH: &[Field] = &[
    In(0, 7, &Text),
    In(0, 7, &List(&[Text, Each(4)])),
    In(
        8,
        ON,
        &List(&[
            Text,
            In(9, ON, &Text),
            In(9, ON, &Fixed(4)),
            List(&[Text, Each(4)]),
        ]),
    ),
    In(7, ON, &Fixed(1)),
];

const JOIN_GROUP: &[Field] = &[
    Text,
    Fixed(4),
    In(1, ON, &Fixed(4)),
    Text,
    In(5, ON, &Text),
    Text,
    List(&[Text, Blob]),
    In(8, ON, &Text),
];

const SYNC_GROUP: &[Field] = &[
    Text,
    Fixed(4),
    Text,
    In(3, ON, &Text),
    In(5, ON, &Text),
    In(5, ON, &Text),
    List(&[Text, Blob]),
];

const HEARTBEAT: &[Field] = &[Text, Fixed(4), Text, In(3, ON, &Text)];

const LEAVE_GROUP: &[Field] = &[
    Text,
    In(0, 2, &Text),
    In(3, ON, &List(&[Text, Text, In(5, ON, &Text)])),
];

const DESCRIBE_GROUPS: &[Field] = &[Texts, In(3, ON, &Fixed(1))];

const LIST_GROUPS: &[Field] = &[In(4, ON, &Texts), In(5, ON, &Texts)];

const DELETE_GROUPS: &[Field] = &[Texts];

const OFFSET_DELETE: &[Field] = &[Text, List(&[Text, Each(4)])];

const ADD_PARTITIONS: &[Field] = &[Text, Fixed(8 + 2), List(&[Text, Each(4)])];

const ADD_OFFSETS: &[Field] = &[Text, Fixed(8 + 2), Text];

const END_TXN: &[Field] = &[Text, Fixed(8 + 2 + 1)];

const TXN_OFFSET_COMMIT: &[Field] = &[
    Text,
    Text,
    Fixed(8 + 2),
    In(3, ON, &Fixed(4)),
    In(3, ON, &Text),
    In(3, ON, &Text),
    List(&[Text, List(&[Fixed(4 + 8), In(2, ON, &Fixed(4)), Text])]),
];

const CONSUMER_GROUP_HEARTBEAT: &[Field] = &[
    Text,
    Text,
    Fixed(4),
    Text,
    Text,
    Fixed(4),
    Texts,
    Text,
    Text,
    List(&[Fixed(16), Each(4)]),
];

const CONSUMER_GROUP_DESCRIBE: &[Field] = &[Texts, Fixed(1)];

const DESCRIBE_PRODUCERS: &[Field] = &[List(&[Text, Each(4)])];

const DESCRIBE_TRANSACTIONS: &[Field] = &[Texts];

const LIST_TRANSACTIONS: &[Field] = &[Texts, Each(8), In(1, ON, &Fixed(8))];
