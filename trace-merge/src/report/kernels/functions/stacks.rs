//! Samples by stack: a tree of who called whom, in bounded memory.

use super::{Function, FunctionId};
use foldhash::HashMap;
use strata_analysis::event::Tid;

/// Nodes of a kernel's tree; what lies deeper than there is room for counts for the callers that have a node.
const MOST_NODES: usize = 1 << 14;

/// What a node stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Frame {
    Process(Tid),
    Function { function: FunctionId, is_kernel: bool },
}

#[derive(Clone, Copy, Debug)]
struct Node {
    parent: Option<usize>,
    frame: Frame,
    own: u64,
    total: u64,
}

/// A tree in the making: processes, and below each the functions that were called, the outermost first.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    nodes: Vec<Node>,
    numbers: HashMap<(Option<usize>, Frame), usize>,
    cut: u64,
}

/// Where samples were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackLayer {
    /// In this process: what was called lies below.
    Process,
    /// In a function of the guest's kernel.
    GuestKernel,
    /// In a function of a program.
    GuestUser,
}

/// A process, or a function with all that called it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackNode {
    /// Number of the node above it, which has a lower one; `None` for a process.
    pub parent: Option<usize>,
    /// Name of the process with its number, or of the function as [`FunctionSamples`](super::FunctionSamples) has it.
    pub name: String,
    /// The file or kernel module of a function.
    pub module: String,
    pub layer: StackLayer,
    /// Samples in it.
    pub own: u64,
    /// Samples in it or in what it called.
    pub total: u64,
}

/// The samples of a kernel by stack, idle ones left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackTree {
    /// Parents come before their children.
    pub nodes: Vec<StackNode>,
    /// Samples that count for a caller of the function that they were made in, because there were too many stacks.
    pub cut: u64,
}

impl Stacks {
    /// Adds a sample of `process`: the functions, the innermost first, and whether each is the kernel's.
    pub(super) fn add(
        &mut self,
        process: Tid,
        functions: impl DoubleEndedIterator<Item = (FunctionId, bool)> + ExactSizeIterator,
    ) {
        let outermost_first = functions.rev();
        let frames = outermost_first.map(|(function, is_kernel)| Frame::Function { function, is_kernel });
        let mut at = None;
        for frame in std::iter::once(Frame::Process(process)).chain(frames) {
            let Some(node) = self.node(at, frame) else {
                self.cut += 1;
                break;
            };
            if let Some(node) = self.nodes.get_mut(node) {
                node.total += 1;
            }
            at = Some(node);
        }
        if let Some(node) = at.and_then(|at| self.nodes.get_mut(at)) {
            node.own += 1;
        }
    }

    fn node(&mut self, parent: Option<usize>, frame: Frame) -> Option<usize> {
        if let Some(&known) = self.numbers.get(&(parent, frame)) {
            return Some(known);
        }
        if self.nodes.len() >= MOST_NODES {
            return None;
        }
        self.nodes.push(Node { parent, frame, own: 0, total: 0 });
        self.numbers.insert((parent, frame), self.nodes.len() - 1);
        Some(self.nodes.len() - 1)
    }

    /// The tree with the names of its functions, `functions`, and of processes.
    pub(super) fn finish(self, functions: &[Function], comm: impl Fn(Tid) -> String) -> StackTree {
        let node = |Node { parent, frame, own, total }: Node| {
            let (name, module, layer) = match frame {
                Frame::Process(pid) => (format!("{}/{pid}", comm(pid)), String::new(), StackLayer::Process),
                Frame::Function { function, is_kernel } => {
                    let (name, module) = functions
                        .get(function)
                        .map_or_else(Default::default, |known| (known.name.clone(), known.module.clone()));
                    (name, module, if is_kernel { StackLayer::GuestKernel } else { StackLayer::GuestUser })
                }
            };
            StackNode { parent, name, module, layer, own, total }
        };
        StackTree { nodes: self.nodes.into_iter().map(node).collect(), cut: self.cut }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str) -> Function {
        Function { name: name.into(), module: "[kernel]".into(), is_named: true, is_certain: true }
    }

    #[test]
    fn samples_count_for_all_that_called_and_once_for_where_they_were_made() {
        let mut stacks = Stacks::default();
        stacks.add(7, [(1, true), (0, true)].into_iter());
        stacks.add(7, [(0, true)].into_iter());
        stacks.add(8, [(1, true), (0, true)].into_iter());

        let tree = stacks.finish(&[function("outer"), function("inner")], |pid| format!("task{pid}"));

        let nodes: Vec<_> =
            tree.nodes.iter().map(|node| (node.parent, node.name.as_str(), node.own, node.total)).collect();
        let expected = [
            (None, "task7/7", 0, 2),
            (Some(0), "outer", 1, 2),
            (Some(1), "inner", 1, 1),
            (None, "task8/8", 0, 1),
            (Some(3), "outer", 0, 1),
            (Some(4), "inner", 1, 1),
        ];
        assert_eq!(nodes, expected);
        assert_eq!(tree.cut, 0);
    }

    #[test]
    fn stacks_that_there_is_no_room_for_count_for_their_callers() {
        let mut stacks = Stacks::default();
        (0..MOST_NODES).for_each(|function| stacks.add(7, [(function, false)].into_iter()));

        let tree = stacks.finish(&[], |_| String::new());

        assert_eq!((tree.nodes.len(), tree.cut, tree.nodes[0].own, tree.nodes[0].total), (MOST_NODES, 1, 1, 16_384));
        assert_eq!(tree.nodes.iter().map(|node| node.own).sum::<u64>(), 16_384);
    }
}
