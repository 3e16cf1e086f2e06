//! SQL over hot and cold records, served as Arrow Flight SQL.
