//! The paths of all columns as a tree, so that a payload is walked once.

use crate::path::Path;

/// Where in the tree one is; 0 is the whole payload.
pub(crate) type NodeId = usize;

/// The root of every tree.
pub(crate) const ROOT: NodeId = 0;

#[derive(Debug, Default)]
pub(crate) struct Node {
    /// Steps that lead on, in the columns' order.
    children: Vec<(String, NodeId)>,
    /// Columns whose path ends here.
    pub(crate) columns: Vec<usize>,
    /// Columns whose path comes through here or ends here.
    pub(crate) below: Vec<usize>,
}

impl Node {
    pub(crate) fn is_leaf(&self) -> bool {
        self.children.is_empty()
    }

    /// The child that `key` leads to. `expected` is where it is looked for first, and then where the next one is: payloads
    /// mostly have their keys in one order.
    pub(crate) fn child(&self, key: &str, expected: &mut usize) -> Option<NodeId> {
        if let Some((name, child)) = self.children.get(*expected)
            && name == key
        {
            *expected += 1;
            return Some(*child);
        }
        let at = self.children.iter().position(|(name, _)| name == key)?;
        *expected = at + 1;
        Some(self.children[at].1)
    }

    /// The child that a place in a list leads to.
    pub(crate) fn item(&self, index: usize) -> Option<NodeId> {
        let found = self
            .children
            .iter()
            .find(|(name, _)| place(name) == Some(index))?;
        Some(found.1)
    }

    /// Whether a step that leads on may be a place in a list.
    pub(crate) fn leads_into_lists(&self) -> bool {
        self.children.iter().any(|(name, _)| place(name).is_some())
    }
}

/// The place in a list that a step is, if it is one.
fn place(step: &str) -> Option<usize> {
    step.parse().ok().filter(|_| !step.starts_with('+'))
}

#[derive(Debug)]
pub(crate) struct Tree {
    nodes: Vec<Node>,
}

impl Tree {
    /// The tree of the columns' paths, in the columns' order.
    pub(crate) fn new<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let mut tree = Self {
            nodes: vec![Node::default()],
        };
        for (column, path) in paths.into_iter().enumerate() {
            let mut at = ROOT;
            tree.nodes[at].below.push(column);
            for step in path.steps() {
                let known = tree.nodes[at]
                    .children
                    .iter()
                    .find(|(name, _)| name == step);
                at = match known {
                    Some((_, child)) => *child,
                    None => {
                        let child = tree.nodes.len();
                        tree.nodes[at].children.push((step.clone(), child));
                        tree.nodes.push(Node::default());
                        child
                    }
                };
                tree.nodes[at].below.push(column);
            }
            tree.nodes[at].columns.push(column);
        }
        tree
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id]
    }
}
