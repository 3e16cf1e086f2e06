//! Where in a payload a column's value stands.

use std::fmt::{Display, Formatter};

/// Steps of a path.
const MAX_STEPS: usize = 32;

/// The keys, or places in lists, that lead from a payload's value to a column's.
///
/// Written as a JSON pointer (`/user/tags/0`, RFC 6901) or with dots (`user.tags.0`). A step that meets a list is a place in
/// it, counted from 0. The empty pointer is the whole payload.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Path(Vec<String>);

impl Path {
    /// The path with one step.
    pub(crate) fn key(key: &str) -> Self {
        Self(vec![key.to_owned()])
    }

    /// Reads a path.
    ///
    /// # Errors
    /// What is wrong with the text, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let steps = match text.strip_prefix('/') {
            None if text.is_empty() => Vec::new(),
            None => text.split('.').map(str::to_owned).collect(),
            Some(pointer) => pointer.split('/').map(unescape).collect::<Result<_, _>>()?,
        };
        if steps.len() > MAX_STEPS {
            return Err(format!("the path has more than {MAX_STEPS} steps"));
        }
        if !text.starts_with('/') && steps.iter().any(String::is_empty) {
            return Err("the path has an empty step".to_owned());
        }
        Ok(Self(steps))
    }

    /// Its steps, from the whole payload on.
    #[must_use]
    pub fn steps(&self) -> &[String] {
        &self.0
    }
}

fn unescape(step: &str) -> Result<String, String> {
    let mut pieces = step.split('~');
    let mut unescaped = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let rest = match piece.chars().next() {
            Some('0') => '~',
            Some('1') => '/',
            _ => return Err("in a JSON pointer ~ is written ~0 and / is written ~1".to_owned()),
        };
        unescaped.push(rest);
        unescaped.push_str(&piece[1..]);
    }
    Ok(unescaped)
}

impl Display for Path {
    /// As a JSON pointer, which can say every path.
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        for step in &self.0 {
            write!(f, "/{}", step.replace('~', "~0").replace('/', "~1"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_and_dots_say_the_same() {
        let steps = |text: &str| Path::parse(text).unwrap().steps().to_vec();
        assert_eq!(steps("a.b.0"), ["a", "b", "0"]);
        assert_eq!(steps("/a/b/0"), ["a", "b", "0"]);
        assert_eq!(steps("/a~1b/~0"), ["a/b", "~"]);
        assert_eq!(steps("/"), [""]);
        assert!(steps("").is_empty());
        assert_eq!(Path::parse("/a~1b/~0").unwrap().to_string(), "/a~1b/~0");
        assert!(Path::parse("a..b").is_err());
        assert!(Path::parse("/a~2").is_err());
        assert!(Path::parse(&"/a".repeat(33)).is_err());
    }
}
