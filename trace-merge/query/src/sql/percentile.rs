//! Percentiles, exactly: where one lies between two values, DataFusion's own cuts the share of the way to six decimals.

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Float64Array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, FieldRef, Float64Type};
use datafusion::common::cast::as_list_array;
use datafusion::common::{Result, ScalarValue, plan_datafusion_err};
use datafusion::functions_aggregate::percentile_cont::PercentileCont;
use datafusion::logical_expr::function::{AccumulatorArgs, AggregateFunctionSimplification, StateFieldsArgs};
use datafusion::logical_expr::{Accumulator, AggregateUDFImpl, EmitTo, GroupsAccumulator, Signature};
use datafusion::physical_expr::expressions::Literal;
use std::sync::Arc;

/// `percentile_cont`: DataFusion's, but for the last step.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Exact(PercentileCont);

impl AggregateUDFImpl for Exact {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn aliases(&self) -> &[String] {
        self.0.aliases()
    }

    fn signature(&self) -> &Signature {
        self.0.signature()
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        self.0.return_type(arguments)
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        self.0.state_fields(args)
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        if args.expr_fields.first().is_none_or(|field| field.data_type().is_null()) {
            return self.0.accumulator(args);
        }
        let share = share(&args)?;
        Ok(Box::new(OfOne { values: self.0.accumulator(args)?, share }))
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        self.0.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn GroupsAccumulator>> {
        let share = share(&args)?;
        Ok(Box::new(OfGroups { values: self.0.create_groups_accumulator(args)?, share }))
    }

    fn simplify(&self) -> Option<AggregateFunctionSimplification> {
        self.0.simplify()
    }

    fn supports_within_group_clause(&self) -> bool {
        true
    }
}

/// The share of the values that lies before the percentile. DataFusion's own accumulator checks it.
fn share(args: &AccumulatorArgs<'_>) -> Result<f64> {
    let literal = args.exprs.get(1).and_then(|share| share.downcast_ref::<Literal>());
    let share = match literal.map(Literal::value) {
        Some(ScalarValue::Float64(Some(share))) => *share,
        Some(ScalarValue::Float32(Some(share))) => f64::from(*share),
        _ => return Err(plan_datafusion_err!("the share of a percentile is a number")),
    };
    let is_descending = args.order_bys.first().is_some_and(|order| order.options.descending);
    Ok(if is_descending { 1.0 - share } else { share })
}

/// The percentile at `share` of a list of `values`; none of an empty one.
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "an index")]
fn percentile(values: &ArrayRef, share: f64) -> Result<Option<f64>> {
    let values = cast(values, &DataType::Float64)?;
    let mut values: Vec<f64> = values.as_primitive::<Float64Type>().iter().flatten().collect();
    let place = share * values.len().saturating_sub(1) as f64;
    let before = place as usize;
    if before >= values.len() {
        return Ok(None);
    }
    let (_, &mut lower, rest) = values.select_nth_unstable_by(before, f64::total_cmp);
    let upper = rest.iter().copied().min_by(f64::total_cmp).unwrap_or(lower);
    let way = place - before as f64;
    // Between infinities there is no way.
    Ok(Some(if way == 0.0 { lower } else { way.mul_add(upper - lower, lower) }))
}

/// The values of one group.
#[derive(Debug)]
struct OfOne {
    values: Box<dyn Accumulator>,
    share: f64,
}

impl Accumulator for OfOne {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.values.update_batch(values)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let state = self.values.state()?;
        let (found, kind) = match state.first() {
            Some(ScalarValue::List(list)) if list.len() == 1 => {
                (percentile(&list.value(0), self.share)?, list.value_type())
            }
            _ => (None, DataType::Float64),
        };
        // The state was taken.
        self.values.merge_batch(&state.iter().map(ScalarValue::to_array).collect::<Result<Vec<_>>>()?)?;
        ScalarValue::Float64(found).cast_to(&kind)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.values.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.values.state()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.values.merge_batch(states)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.values.retract_batch(values)
    }

    fn supports_retract_batch(&self) -> bool {
        self.values.supports_retract_batch()
    }
}

/// The values of many groups.
struct OfGroups {
    values: Box<dyn GroupsAccumulator>,
    share: f64,
}

impl GroupsAccumulator for OfGroups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        count: usize,
    ) -> Result<()> {
        self.values.update_batch(values, groups, filter, count)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let state = self.values.state(emit_to)?;
        let Some(lists) = state.first() else { return Ok(Arc::new(Float64Array::new_null(0))) };
        let lists = as_list_array(lists)?;
        let found = lists.iter().map(|values| match values {
            Some(values) => percentile(&values, self.share),
            None => Ok(None),
        });
        let found: Float64Array = found.collect::<Result<_>>()?;
        Ok(cast(&found, &lists.value_type())?)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        self.values.state(emit_to)
    }

    fn merge_batch(&mut self, values: &[ArrayRef], groups: &[usize], count: usize) -> Result<()> {
        self.values.merge_batch(values, groups, count)
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        self.values.convert_to_state(values, filter)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.values.size()
    }
}
