//! Cooling of segments into Parquet, and the tiered log that joins hot and cold.
