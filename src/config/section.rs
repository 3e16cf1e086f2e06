//! One table of settings per section of the configuration: a field's doc comment is at once its Rust documentation, the
//! comment that `serve --print-config` writes above it, and the place where its unit, trade-off and safe range stand.

/// A setting as `--print-config` and `validate` see it.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name in TOML.
    pub name: &'static str,
    /// The lines of its doc comment.
    pub doc: &'static [&'static str],
    /// Inclusive bounds of an integer setting; `None` for settings of another type.
    pub range: Option<(u64, u64)>,
}

/// Declares a section: its struct with serde, `Default`, `FIELDS` (in order of declaration) and `out_of_range`.
macro_rules! section {
    (
        $(#[doc = $section_doc:literal])+
        $name:ident {
            $(
                $(#[doc = $doc:literal])+
                $field:ident : $type:ty = $default:expr $(, in $low:literal ..= $high:expr)? ;
            )+
        }
    ) => {
        $(#[doc = $section_doc])+
        #[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $( $(#[doc = $doc])+ pub $field: $type, )+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $( $field: $default, )+ }
            }
        }

        impl $name {
            /// What the section is about.
            pub const DOC: &'static [&'static str] = &[$($section_doc),+];

            /// Every setting, in order of declaration.
            pub const FIELDS: &'static [$crate::config::Field] = &[
                $( $crate::config::Field {
                    name: stringify!($field),
                    doc: &[$($doc),+],
                    range: $crate::config::section::range!($($low, $high)?),
                }, )+
            ];

            /// Calls `report` for every integer outside its range: name, value, lowest, highest.
            fn out_of_range(&self, report: &mut dyn FnMut(&'static str, u64, u64, u64)) {
                $( $crate::config::section::check!(self, report, $field $(, $low, $high)?); )+
            }
        }
    };
}

macro_rules! range {
    () => {
        None
    };
    ($low:literal, $high:expr) => {
        Some(($low as u64, $high as u64))
    };
}

macro_rules! check {
    ($self:ident, $report:ident, $field:ident) => {};
    ($self:ident, $report:ident, $field:ident, $low:literal, $high:expr) => {
        let (value, low, high) = ($self.$field as u64, $low as u64, $high as u64);
        if value < low || value > high {
            $report(stringify!($field), value, low, high);
        }
    };
}

pub(super) use {check, range, section};
