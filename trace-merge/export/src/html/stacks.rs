//! The samples by stack as the page gets them.

use foldhash::HashMap;
use serde_json::{Value, json};
use strata_recording::text::terminal::harmless;
use trace_merge::report::kernels::functions::{FunctionsReport, SampledKernel, StackLayer};

/// Characters of a name that are kept.
const LONGEST: usize = 200;

/// By VM: names with their modules, and nodes, each with the number of the node above it (-1 for none), of its name and
/// layer, and of its own and all of its samples.
pub(super) fn reported(report: Option<&FunctionsReport>) -> Value {
    let kernels = report.map_or(&[][..], |report| &report.kernels);
    kernels.iter().filter(|kernel| !kernel.stacks.nodes.is_empty()).map(tree).collect()
}

fn tree(kernel: &SampledKernel) -> Value {
    let mut names = Vec::new();
    let mut numbers: HashMap<(&str, &str), usize> = HashMap::default();
    let mut nodes = Vec::with_capacity(kernel.stacks.nodes.len());
    for node in &kernel.stacks.nodes {
        let name = *numbers.entry((&node.name, &node.module)).or_insert_with(|| {
            names.push([&node.name, &node.module].map(|text| harmless(text).chars().take(LONGEST).collect::<String>()));
            names.len() - 1
        });
        let layer = match node.layer {
            StackLayer::Process => 0,
            StackLayer::GuestKernel => 1,
            StackLayer::GuestUser => 2,
        };
        nodes.push(json!([node.parent.map_or(json!(-1), Value::from), name, layer, node.own, node.total]));
    }
    let vm = harmless(&kernel.vm);
    json!({ "vm": vm, "idle": kernel.idle, "cut": kernel.stacks.cut, "names": names, "nodes": nodes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace_merge::report::kernels::functions::{StackNode, StackTree};

    #[test]
    fn nodes_refer_to_names_and_to_those_above_them() {
        let node = |parent, name: &str, layer, own, total| StackNode {
            parent,
            name: name.into(),
            module: if layer == StackLayer::Process { String::new() } else { "[kernel]".into() },
            layer,
            own,
            total,
        };
        let nodes = vec![
            node(None, "dd/7", StackLayer::Process, 0, 3),
            node(Some(0), "read\x1b", StackLayer::GuestKernel, 1, 3),
            node(Some(1), "read\x1b", StackLayer::GuestKernel, 2, 2),
        ];
        let kernel = SampledKernel {
            vm: "vm0".into(),
            samples: 5,
            idle: 2,
            unnamed: 0,
            has_kernel_symbols: true,
            functions: Vec::new(),
            processes: Vec::new(),
            stacks: StackTree { nodes, cut: 1 },
        };

        let reported = reported(Some(&FunctionsReport { kernels: vec![kernel] }));

        let nodes = json!([[-1, 0, 0, 0, 3], [0, 1, 1, 1, 3], [1, 1, 1, 2, 2]]);
        let names = json!([["dd/7", ""], ["read\\u{1b}", "[kernel]"]]);
        assert_eq!(reported, json!([{ "vm": "vm0", "idle": 2, "cut": 1, "names": names, "nodes": nodes }]));
    }

    #[test]
    fn without_samples_there_is_no_tree() {
        assert_eq!(reported(None), json!([]));
    }
}
