//! Schema `sys`: the server's state as tables.

mod cooling;
mod files;
mod groups;
mod queries;
mod segments;

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Builder, Int64Builder, RecordBatch, StringArray, StringBuilder};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;

use crate::Setting;
use crate::control::Registry;
use crate::snapshot::QuerySnapshots;

/// The tables of schema `sys`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SysTableKind {
    /// A row a topic.
    Topics,
    /// A row a partition, with its bounds.
    Partitions,
    /// A row a hot segment and a cold file.
    Segments,
    /// A row a cold file.
    Files,
    /// A row a partition in which a group has committed.
    Groups,
    /// A row a partition, with what cooling and merging have done and have left to do.
    Cooling,
    /// A row a query that is there, or was not long ago.
    Queries,
    /// A row a setting of the server.
    Settings,
}

impl SysTableKind {
    pub(crate) const ALL: [Self; 8] = [
        Self::Topics,
        Self::Partitions,
        Self::Segments,
        Self::Files,
        Self::Groups,
        Self::Cooling,
        Self::Queries,
        Self::Settings,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Topics => "topics",
            Self::Partitions => "partitions",
            Self::Segments => "segments",
            Self::Files => "files",
            Self::Groups => "groups",
            Self::Cooling => "cooling",
            Self::Queries => "queries",
            Self::Settings => "settings",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub(crate) fn schema(self) -> SchemaRef {
        let text = |name: &str| Field::new(name, DataType::Utf8, false);
        let count = |name: &str| Field::new(name, DataType::Int64, false);
        let partition = || Field::new("partition", DataType::Int32, false);
        let stamp = |name: &str| {
            Field::new(
                name,
                DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())),
                true,
            )
        };
        // As the producer sent it, in nanoseconds: what a stamp cannot show, too.
        let raw = |name: &str| Field::new(name, DataType::Decimal128(20, 0), false);
        let setting = |name: &str| Field::new(name, DataType::Utf8, true);
        let fields = match self {
            Self::Topics => {
                let mut fields = vec![
                    text("topic"),
                    text("topic_id"),
                    Field::new("partition_count", DataType::Int32, false),
                ];
                fields.extend(SETTINGS.iter().map(|name| setting(name)));
                fields
            }
            Self::Partitions => vec![
                text("topic"),
                partition(),
                count("log_start_offset"),
                count("cold_end_offset"),
                count("stable_offset"),
                count("high_watermark"),
                count("log_end_offset"),
                count("hot_bytes"),
                count("cold_bytes"),
            ],
            Self::Segments => vec![
                text("topic"),
                partition(),
                text("tier"),
                count("base_offset"),
                count("end_offset"),
                count("frame_bytes"),
                count("file_bytes"),
                stamp("min_timestamp"),
                stamp("max_timestamp"),
                stamp("appended_at"),
                Field::new("sealed", DataType::Boolean, false),
                text("path"),
            ],
            Self::Files => vec![
                text("topic"),
                partition(),
                text("path"),
                count("base_offset"),
                count("end_offset"),
                count("rows"),
                count("frame_bytes"),
                count("file_bytes"),
                stamp("min_timestamp"),
                stamp("max_timestamp"),
                raw("min_timestamp_raw"),
                raw("max_timestamp_raw"),
            ],
            Self::Groups => vec![
                text("group_name"),
                text("topic"),
                partition(),
                count("committed_offset"),
                count("high_watermark"),
                count("lag_records"),
            ],
            Self::Cooling => cooling::fields(),
            Self::Queries => queries::fields(),
            Self::Settings => vec![text("name"), text("value"), text("description")],
        };
        Arc::new(Schema::new(fields))
    }
}

/// The topic settings shown, by the names they are set with; NULL where the server's default holds.
const SETTINGS: [&str; 12] = [
    "durability",
    "segment_bytes",
    "retention_bytes",
    "retention_age_ms",
    "hot_bytes",
    "hot_age_ms",
    "shred_json",
    "cleanup_policy",
    "delete_retention_ms",
    "min_cleanable_dirty_ratio",
    "min_compaction_lag_ms",
    "max_message_bytes",
];

/// What the tables show that the log does not know.
#[derive(Debug, Clone)]
pub(crate) struct SysSources {
    pub(crate) settings: Arc<[Setting]>,
    pub(crate) registry: Arc<Registry>,
}

/// One of the tables, as one query sees it.
#[derive(Debug)]
pub(crate) struct SysTable {
    kind: SysTableKind,
    snapshots: Arc<QuerySnapshots>,
    sources: SysSources,
}

impl SysTable {
    pub(crate) fn new(
        kind: SysTableKind,
        snapshots: Arc<QuerySnapshots>,
        sources: SysSources,
    ) -> Self {
        Self {
            kind,
            snapshots,
            sources,
        }
    }

    fn rows(&self) -> Result<RecordBatch> {
        let columns = match self.kind {
            SysTableKind::Topics => topics(&self.snapshots),
            SysTableKind::Partitions => partitions(&self.snapshots),
            SysTableKind::Segments => segments::segments(&self.snapshots),
            SysTableKind::Files => files::files(&self.snapshots),
            SysTableKind::Groups => groups::groups(self.snapshots.log()),
            SysTableKind::Cooling => cooling::cooling(self.snapshots.log()),
            SysTableKind::Queries => queries::queries(&self.sources.registry),
            SysTableKind::Settings => settings(&self.sources.settings),
        };
        Ok(RecordBatch::try_new(self.kind.schema(), columns)?)
    }
}

#[async_trait]
impl TableProvider for SysTable {
    fn schema(&self) -> SchemaRef {
        self.kind.schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let rows = self.rows()?;
        let schema = rows.schema();
        Ok(MemorySourceConfig::try_new_exec(
            &[vec![rows]],
            schema,
            projection.cloned(),
        )?)
    }
}

fn topics(snapshots: &QuerySnapshots) -> Vec<ArrayRef> {
    let mut names = StringBuilder::new();
    let mut ids = StringBuilder::new();
    let mut partition_counts = Int32Builder::new();
    let mut settings: Vec<StringBuilder> = SETTINGS.iter().map(|_| StringBuilder::new()).collect();
    let mut topics = snapshots.log().log().topics();
    topics.sort_by(|a, b| a.name().cmp(b.name()));
    for topic in topics {
        names.append_value(topic.name().as_str());
        ids.append_value(format!("{:016x}", topic.id().0));
        partition_counts.append_value(int(topic.partition_count()));
        let pairs = topic.config().to_pairs();
        for (setting, column) in SETTINGS.iter().zip(&mut settings) {
            let value = pairs
                .iter()
                .find(|(name, value)| name == setting && !value.is_empty());
            column.append_option(value.map(|(_, value)| value.as_str()));
        }
    }
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(names.finish()),
        Arc::new(ids.finish()),
        Arc::new(partition_counts.finish()),
    ];
    columns.extend(
        settings
            .into_iter()
            .map(|mut column| Arc::new(column.finish()) as ArrayRef),
    );
    columns
}

fn partitions(snapshots: &QuerySnapshots) -> Vec<ArrayRef> {
    let mut names = StringBuilder::new();
    let mut ids = Int32Builder::new();
    let mut numbers: [Int64Builder; 7] = std::array::from_fn(|_| Int64Builder::new());
    for name in snapshots.topic_names() {
        let Some(topic) = snapshots.log().log().topic(&name) else {
            continue;
        };
        for (partition, bounds) in snapshots.log().topic_bounds(&topic) {
            names.append_value(name.as_str());
            ids.append_value(int(partition.0));
            let values = [
                bounds.log_start_offset.0,
                bounds.cold_end_offset.0,
                bounds.stable_offset.0,
                bounds.high_watermark.0,
                bounds.log_end_offset.0,
                bounds.hot_bytes,
                bounds.cold_bytes,
            ];
            for (column, value) in numbers.iter_mut().zip(values) {
                column.append_value(bigint(value));
            }
        }
    }
    let mut columns: Vec<ArrayRef> = vec![Arc::new(names.finish()), Arc::new(ids.finish())];
    columns.extend(
        numbers
            .into_iter()
            .map(|mut column| Arc::new(column.finish()) as ArrayRef),
    );
    columns
}

fn settings(settings: &[Setting]) -> Vec<ArrayRef> {
    let column = |of: fn(&Setting) -> &str| {
        Arc::new(settings.iter().map(of).map(Some).collect::<StringArray>()) as ArrayRef
    };
    vec![
        column(|setting| &setting.name),
        column(|setting| &setting.value),
        column(|setting| &setting.description),
    ]
}

/// As SQL's BIGINT; offsets and lengths stay below its end, which nothing reaches.
fn bigint(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn int(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}
