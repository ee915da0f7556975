"""Writes the bytecode that the reader's tests use: python make.py [NAMES] (needs jax; programs of version 1.20.0 want 0.12).

Each program is StableHLO text below, serialised as JAX's client would, to version 1.14.0 or the one it names. They hold
what no JAX program does; what JAX sends is tested with its own programs.
"""

import pathlib
import sys

from jax._src.interpreters import mlir
from jaxlib import _jax
from jaxlib.mlir import ir

HERE = pathlib.Path(__file__).parent

PROGRAMS = {}


def program(name, text, version="1.14.0"):
    PROGRAMS[name] = text, version


program("batch_norm", """
func.func @main(%x: tensor<2x3x4xf32>, %s: tensor<4xf32>, %o: tensor<4xf32>, %m: tensor<4xf32>, %v: tensor<4xf32>, %g: tensor<2x3x4xf32>)
    -> (tensor<2x3x4xf32>, tensor<2x3x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<2x3x4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %0 = "stablehlo.batch_norm_inference"(%x, %s, %o, %m, %v) {epsilon = 0.5 : f32, feature_index = 2 : i64} : (tensor<2x3x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<2x3x4xf32>
  %1:3 = "stablehlo.batch_norm_training"(%x, %s, %o) {epsilon = 0.5 : f32, feature_index = 2 : i64} : (tensor<2x3x4xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<2x3x4xf32>, tensor<4xf32>, tensor<4xf32>)
  %2:3 = "stablehlo.batch_norm_grad"(%x, %s, %m, %v, %g) {epsilon = 0.5 : f32, feature_index = 2 : i64} : (tensor<2x3x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<2x3x4xf32>) -> (tensor<2x3x4xf32>, tensor<4xf32>, tensor<4xf32>)
  return %0, %1#0, %1#1, %1#2, %2#0, %2#1, %2#2 : tensor<2x3x4xf32>, tensor<2x3x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<2x3x4xf32>, tensor<4xf32>, tensor<4xf32>
}
""")

program("products", """
func.func @main(%a: tensor<3x4xf32>, %b: tensor<4x5xf32>, %c: tensor<4xf32>, %d: tensor<2x3x4xf32>) -> (tensor<3x5xf32>, tensor<f32>, tensor<5x3xf32>, tensor<2x3x5xf32>, tensor<4xf32>, tensor<4x3xf32>, tensor<3x2xf32>) {
  %0 = stablehlo.dot %a, %b : (tensor<3x4xf32>, tensor<4x5xf32>) -> tensor<3x5xf32>
  %1 = stablehlo.dot %c, %c, precision = [HIGH, HIGHEST] : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
  %2 = stablehlo.einsum %a, %b, config = "ij,jk->ki" : (tensor<3x4xf32>, tensor<4x5xf32>) -> tensor<5x3xf32>
  %3 = stablehlo.einsum %d, %b, config = "...j,jk->...k" : (tensor<2x3x4xf32>, tensor<4x5xf32>) -> tensor<2x3x5xf32>
  %4 = "stablehlo.unary_einsum"(%a) {einsum_config = "ij->j"} : (tensor<3x4xf32>) -> tensor<4xf32>
  %5 = "stablehlo.unary_einsum"(%a) {einsum_config = "ij->ji"} : (tensor<3x4xf32>) -> tensor<4x3xf32>
  %6 = stablehlo.einsum %d, %a, config = "bij,ij->ib" : (tensor<2x3x4xf32>, tensor<3x4xf32>) -> tensor<3x2xf32>
  return %0, %1, %2, %3, %4, %5, %6 : tensor<3x5xf32>, tensor<f32>, tensor<5x3xf32>, tensor<2x3x5xf32>, tensor<4xf32>, tensor<4x3xf32>, tensor<3x2xf32>
}
""")

program("dot_algorithm", """
func.func @main(%a: tensor<2x3xf32>, %b: tensor<3x4xf32>) -> tensor<2x4xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0], algorithm = <lhs_precision_type = bf16, rhs_precision_type = bf16, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 3, allow_imprecise_accumulation = false> : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}
""")

program("map", """
func.func @main(%a: tensor<2x3xf32>, %b: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %0 = "stablehlo.map"(%a, %b) ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %c = stablehlo.constant dense<2.0> : tensor<f32>
    %p = stablehlo.multiply %x, %c : tensor<f32>
    %q = stablehlo.add %p, %y : tensor<f32>
    stablehlo.return %q : tensor<f32>
  }) {dimensions = array<i64: 0, 1>} : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}
""")

program("index_select", """
func.func @main(%a: tensor<5x3x4xf32>, %i: tensor<2xi32>, %b: tensor<2x7xf32>, %j: tensor<2x6xi32>) -> (tensor<5x2x4xf32>, tensor<2x6xf32>, tensor<8x2x2xi32>) {
  %0 = "stablehlo.torch_index_select"(%a, %i) {dim = 1 : i64, batch_dims = 0 : i64} : (tensor<5x3x4xf32>, tensor<2xi32>) -> tensor<5x2x4xf32>
  %1 = "stablehlo.torch_index_select"(%b, %j) {dim = 1 : i64, batch_dims = 1 : i64} : (tensor<2x7xf32>, tensor<2x6xi32>) -> tensor<2x6xf32>
  %2 = "stablehlo.broadcast"(%i) {broadcast_sizes = array<i64: 8, 2>} : (tensor<2xi32>) -> tensor<8x2x2xi32>
  return %0, %1, %2 : tensor<5x2x4xf32>, tensor<2x6xf32>, tensor<8x2x2xi32>
}
""")

program("tuples", """
func.func @pair(%a: tensor<2xf32>, %b: tensor<3xi32>) -> tuple<tensor<2xf32>, tuple<tensor<3xi32>, tensor<2xf32>>> {
  %0 = stablehlo.tuple %b, %a : tuple<tensor<3xi32>, tensor<2xf32>>
  %1 = stablehlo.tuple %a, %0 : tuple<tensor<2xf32>, tuple<tensor<3xi32>, tensor<2xf32>>>
  return %1 : tuple<tensor<2xf32>, tuple<tensor<3xi32>, tensor<2xf32>>>
}
func.func @main(%a: tensor<2xf32>, %b: tensor<3xi32>) -> (tensor<3xi32>, tensor<2xf32>) {
  %0 = call @pair(%a, %b) : (tensor<2xf32>, tensor<3xi32>) -> tuple<tensor<2xf32>, tuple<tensor<3xi32>, tensor<2xf32>>>
  %1 = stablehlo.get_tuple_element %0[1] : (tuple<tensor<2xf32>, tuple<tensor<3xi32>, tensor<2xf32>>>) -> tuple<tensor<3xi32>, tensor<2xf32>>
  %2 = stablehlo.get_tuple_element %1[0] : (tuple<tensor<3xi32>, tensor<2xf32>>) -> tensor<3xi32>
  %3 = stablehlo.get_tuple_element %1[1] : (tuple<tensor<3xi32>, tensor<2xf32>>) -> tensor<2xf32>
  return %2, %3 : tensor<3xi32>, tensor<2xf32>
}
""")

program("if_captures", """
func.func @main(%p: tensor<i1>, %a: tensor<2xf32>, %b: tensor<2xf32>) -> tensor<2xf32> {
  %0 = "stablehlo.if"(%p) ({
    %1 = stablehlo.add %a, %b : tensor<2xf32>
    stablehlo.return %1 : tensor<2xf32>
  }, {
    stablehlo.return %b : tensor<2xf32>
  }) : (tensor<i1>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
""")

program("dynamic", """
func.func @main(%a: tensor<2x3xf32>, %z: tensor<f32>, %i: tensor<2xi32>) -> (tensor<5x6xf32>, tensor<6xf32>, tensor<4x3xi32>, tensor<4x2x3xf32>, tensor<1x2xf32>, tensor<1x2xf32>, tensor<i32>, tensor<2x3xf32>) {
  %lo = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
  %hi = stablehlo.constant dense<[2, 1]> : tensor<2xi32>
  %no = stablehlo.constant dense<0> : tensor<2xi32>
  %one = stablehlo.constant dense<1> : tensor<2xi32>
  %0 = stablehlo.dynamic_pad %a, %z, %lo, %hi, %no : (tensor<2x3xf32>, tensor<f32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<5x6xf32>
  %s = stablehlo.constant dense<[6]> : tensor<1xi32>
  %1 = stablehlo.dynamic_reshape %a, %s : (tensor<2x3xf32>, tensor<1xi32>) -> tensor<6xf32>
  %t = stablehlo.constant dense<[4, 3]> : tensor<2xi32>
  %2 = stablehlo.dynamic_iota %t, dim = 1 : (tensor<2xi32>) -> tensor<4x3xi32>
  %u = stablehlo.constant dense<[4, 2, 3]> : tensor<3xi32>
  %3 = stablehlo.dynamic_broadcast_in_dim %a, %u, dims = [1, 2] : (tensor<2x3xf32>, tensor<3xi32>) -> tensor<4x2x3xf32>
  %end = stablehlo.constant dense<[2, 3]> : tensor<2xi32>
  %from = stablehlo.constant dense<[1, 1]> : tensor<2xi32>
  %4 = stablehlo.real_dynamic_slice %a, %from, %end, %one : (tensor<2x3xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<1x2xf32>
  %w = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
  %far = stablehlo.add %i, %w : tensor<2xi32>
  %5 = stablehlo.real_dynamic_slice %a, %i, %far, %one : (tensor<2x3xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<1x2xf32>
  %6 = stablehlo.get_dimension_size %a, dim = 1 : (tensor<2x3xf32>) -> tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %7 = stablehlo.set_dimension_size %a, %three, dim = 1 : (tensor<2x3xf32>, tensor<i32>) -> tensor<2x3xf32>
  return %0, %1, %2, %3, %4, %5, %6, %7 : tensor<5x6xf32>, tensor<6xf32>, tensor<4x3xi32>, tensor<4x2x3xf32>, tensor<1x2xf32>, tensor<1x2xf32>, tensor<i32>, tensor<2x3xf32>
}
""")

program("dynamic_shape", """
func.func @main(%a: tensor<?x3xf32>) -> tensor<?x3xf32> {
  %0 = stablehlo.abs %a : tensor<?x3xf32>
  return %0 : tensor<?x3xf32>
}
""")

program("constants", """
func.func @main() -> (tensor<3xi1>, tensor<11xi1>, tensor<9xi1>, tensor<3xi4>, tensor<3xui4>, tensor<2xcomplex<f32>>, tensor<3xbf16>, tensor<3xf8E4M3FN>, tensor<4xf32>, tensor<2xf64>, tensor<0xf32>, tensor<2xi64>, tensor<f16>, tensor<2xi2>) {
  %0 = stablehlo.constant dense<[true, false, true]> : tensor<3xi1>
  %1 = stablehlo.constant dense<[true, false, true, true, false, false, false, false, true, false, true]> : tensor<11xi1>
  %2 = stablehlo.constant dense<true> : tensor<9xi1>
  %3 = stablehlo.constant dense<[-8, 7, -1]> : tensor<3xi4>
  %4 = stablehlo.constant dense<[15, 0, 9]> : tensor<3xui4>
  %5 = stablehlo.constant dense<[(1.0, -2.0), (0.5, 0x7F800000)]> : tensor<2xcomplex<f32>>
  %6 = stablehlo.constant dense<[1.5, 0x7FC0, 0xFF80]> : tensor<3xbf16>
  %7 = stablehlo.constant dense<[1.5, -0.0, 0x7F]> : tensor<3xf8E4M3FN>
  %8 = stablehlo.constant dense<[0x7FC00001, 0xFFC00000, -0.0, 1.0e-45]> : tensor<4xf32>
  %9 = stablehlo.constant dense<[0.1, 0x7FF0000000000001]> : tensor<2xf64>
  %10 = stablehlo.constant dense<> : tensor<0xf32>
  %11 = stablehlo.constant dense<[-9223372036854775808, 9223372036854775807]> : tensor<2xi64>
  %12 = stablehlo.constant dense<65504.0> : tensor<f16>
  %13 = stablehlo.constant dense<[-2, 1]> : tensor<2xi2>
  return %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13 : tensor<3xi1>, tensor<11xi1>, tensor<9xi1>, tensor<3xi4>, tensor<3xui4>, tensor<2xcomplex<f32>>, tensor<3xbf16>, tensor<3xf8E4M3FN>, tensor<4xf32>, tensor<2xf64>, tensor<0xf32>, tensor<2xi64>, tensor<f16>, tensor<2xi2>
}
""")

program("reducers", """
func.func @main(%a: tensor<2x3xf32>, %z: tensor<f32>, %k: tensor<f32>, %i: tensor<2x3xi32>, %zi: tensor<i32>, %h: tensor<2x3xbf16>) -> (tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xi32>, tensor<2xf32>) {
  %c = stablehlo.constant dense<2.0> : tensor<f32>
  %0 = "stablehlo.reduce"(%a, %z) ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %r = stablehlo.maximum %y, %x : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) {dimensions = array<i64: 1>} : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
  %1 = "stablehlo.reduce"(%a, %z) ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %p = stablehlo.multiply %x, %c : tensor<f32>
    %r = stablehlo.add %p, %y : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) {dimensions = array<i64: 1>} : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
  %2:2 = "stablehlo.reduce"(%a, %i, %z, %zi) ({
  ^bb0(%x: tensor<f32>, %xi: tensor<i32>, %y: tensor<f32>, %yi: tensor<i32>):
    %p = stablehlo.compare GT, %x, %y, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %q = stablehlo.select %p, %x, %y : tensor<i1>, tensor<f32>
    %s = stablehlo.select %p, %xi, %yi : tensor<i1>, tensor<i32>
    stablehlo.return %q, %s : tensor<f32>, tensor<i32>
  }) {dimensions = array<i64: 1>} : (tensor<2x3xf32>, tensor<2x3xi32>, tensor<f32>, tensor<i32>) -> (tensor<2xf32>, tensor<2xi32>)
  %3 = "stablehlo.reduce"(%h, %z) ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %r = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) {dimensions = array<i64: 1>} : (tensor<2x3xbf16>, tensor<f32>) -> tensor<2xf32>
  return %0, %1, %2#0, %2#1, %3 : tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xi32>, tensor<2xf32>
}
""")

program("reducer_computed", """
func.func @main(%a: tensor<2x3xf32>, %z: tensor<f32>, %k: tensor<f32>) -> tensor<2xf32> {
  %1 = "stablehlo.reduce"(%a, %z) ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %p = stablehlo.multiply %x, %k : tensor<f32>
    %r = stablehlo.add %p, %y : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) {dimensions = array<i64: 1>} : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
  return %1 : tensor<2xf32>
}
""")

program("custom_call", """
func.func @main(%a: tensor<2xf32>, %b: tensor<3xi32>) -> (tensor<2xf32>, tensor<3xi32>, tensor<2xf32>) {
  %0:2 = stablehlo.custom_call @my_call(%a, %b) {api_version = 4 : i32, has_side_effect = true, mhlo.backend_config = {zeta = 7 : ui64, alpha = "text", flag = true, list = [1, 2, 3], ratio = 2.5 : f32, half = 1.5 : bf16, nested = {x = -1 : i32}, mixed = [1, "two"], table = dense<[1.0, 2.0]> : tensor<2xf64>}, output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [1], operand_index = 1, operand_tuple_indices = []>]} : (tensor<2xf32>, tensor<3xi32>) -> (tensor<2xf32>, tensor<3xi32>)
  %1 = stablehlo.custom_call @old_call(%a) {backend_config = "some \\22config\\22"} : (tensor<2xf32>) -> tensor<2xf32>
  %2 = stablehlo.custom_call @Sharding(%1) : (tensor<2xf32>) -> tensor<2xf32>
  return %0#0, %0#1, %2 : tensor<2xf32>, tensor<3xi32>, tensor<2xf32>
}
""")

program("tokens", """
func.func @main(%a: tensor<2xf32>, %t: !stablehlo.token) -> (!stablehlo.token, tensor<2xf32>) {
  %0 = stablehlo.create_token : !stablehlo.token
  %1 = stablehlo.after_all %0, %t : !stablehlo.token
  %2:2 = stablehlo.optimization_barrier %a, %1 : tensor<2xf32>, !stablehlo.token
  %3:2 = "stablehlo.infeed"(%2#1) {infeed_config = "in"} : (!stablehlo.token) -> (tensor<2xf32>, !stablehlo.token)
  %4 = "stablehlo.outfeed"(%3#0, %3#1) {outfeed_config = "out"} : (tensor<2xf32>, !stablehlo.token) -> !stablehlo.token
  return %4, %2#0 : !stablehlo.token, tensor<2xf32>
}
""")

program("shardings", """
module @shardings attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
sdy.mesh @mesh = <["x"=4, "y"=2]>
sdy.mesh @turned = <["z"=8], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>
sdy.mesh @one = <[], device_ids=[3]>
func.func @main(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}p1, {"y"}]>, jax.buffer_donor = true}, %b: tensor<8x16xf32> {tf.aliasing_output = 1 : i32, mhlo.memory_kind = "pinned_host"})
    -> (tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@turned, [{"z":(1)2, "z":(4)2}, {}], replicated={"z":(2)2}>}, tensor<8x16xf32> {mhlo.memory_kind = "device"}) {
  %0 = sdy.sharding_constraint %a <@mesh, [{?}, {?}]> : tensor<8x16xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"y"}, {?}], unreduced={"x"}> : tensor<8x16xf32>
  sdy.sharding_group %1 group_id=21 : tensor<8x16xf32>
  %2 = sdy.manual_computation(%1, %b) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{"y"}, {"x"}]>] out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%p: tensor<2x16xf32>, %q: tensor<8x4xf32>) {
    %5 = "stablehlo.all_reduce"(%p) ({
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %6 = stablehlo.add %x, %y : tensor<f32>
      %7 = sdy.sharding_constraint %6 <@mesh, []> : tensor<f32>
      stablehlo.return %7 : tensor<f32>
    }) {replica_groups = dense<[[0, 2, 4, 6], [1, 3, 5, 7]]> : tensor<2x4xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids} : (tensor<2x16xf32>) -> tensor<2x16xf32>
    %8 = "stablehlo.all_reduce"(%5) ({
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %9 = stablehlo.add %x, %y : tensor<f32>
      stablehlo.return %9 : tensor<f32>
    }) {replica_groups = dense<[[0]]> : tensor<1x1xi64>} : (tensor<2x16xf32>) -> tensor<2x16xf32>
    sdy.return %8 : tensor<2x16xf32>
  } : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  %3 = stablehlo.custom_call @call(%b) {sdy.sharding = #sdy.sharding_per_value<[<@one, []>]>, has_side_effect = true} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %2, %3 : tensor<8x16xf32>, tensor<8x16xf32>
}
}
""")

CALLS = "\n".join(f"  %{i + 1} = call @big(%{i}) : (tensor<4xf32>) -> tensor<4xf32>" for i in range(20))
BIG = "\n".join(f"  %{i + 1} = stablehlo.sine %{i} : tensor<4xf32>" for i in range(210))
program("kept_calls", f"""
func.func private @big(%0: tensor<4xf32>) -> tensor<4xf32> {{
{BIG}
  return %210 : tensor<4xf32>
}}
func.func @main(%0: tensor<4xf32>) -> tensor<4xf32> {{
{CALLS}
  return %20 : tensor<4xf32>
}}
""")

program("recursion", """
func.func private @f(%0: tensor<4xf32>) -> tensor<4xf32> {
  %1 = call @g(%0) : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
func.func private @g(%0: tensor<4xf32>) -> tensor<4xf32> {
  %1 = call @f(%0) : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
func.func @main(%0: tensor<4xf32>) -> tensor<4xf32> {
  %1 = call @f(%0) : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
""")

program("windows", """
func.func @main(%a: tensor<4x6xf32>, %z: tensor<f32>, %s: tensor<2x3xf32>, %x: tensor<1x8x8x4xf32>, %w: tensor<3x3x2x8xf32>) -> (tensor<2x5xf32>, tensor<4x6xf32>, tensor<1x4x4x8xf32>) {
  %0 = "stablehlo.reduce_window"(%a, %z) ({
  ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %r = stablehlo.add %p, %q : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) {window_dimensions = array<i64: 2, 2>, window_strides = array<i64: 2, 1>, window_dilations = array<i64: 1, 2>, padding = dense<[[0, 0], [1, 0]]> : tensor<2x2xi64>} : (tensor<4x6xf32>, tensor<f32>) -> tensor<2x5xf32>
  %1 = "stablehlo.select_and_scatter"(%a, %s, %z) ({
  ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %r = stablehlo.compare GE, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %r : tensor<i1>
  }, {
  ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %r = stablehlo.add %p, %q : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) {window_dimensions = array<i64: 2, 2>, window_strides = array<i64: 2, 2>} : (tensor<4x6xf32>, tensor<2x3xf32>, tensor<f32>) -> tensor<4x6xf32>
  %2 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 2], pad = [[1, 1], [0, 1]], reverse = [true, false]} {batch_group_count = 1 : i64, feature_group_count = 2 : i64} : (tensor<1x8x8x4xf32>, tensor<3x3x2x8xf32>) -> tensor<1x4x4x8xf32>
  return %0, %1, %2 : tensor<2x5xf32>, tensor<4x6xf32>, tensor<1x4x4x8xf32>
}
""")

program("scan", """
func.func @main(%x: tensor<2x3xf32>, %c: tensor<2xf32>) -> (tensor<2x3xf32>, tensor<2xf32>) {
  %0:2 = chlo.scan(%x) inits(%c) dimension=1 attributes {is_reverse = true} {
  ^bb0(%a: tensor<2xf32>, %b: tensor<2xf32>):
    %1 = stablehlo.add %a, %b : tensor<2xf32>
    %2 = stablehlo.multiply %1, %b : tensor<2xf32>
    stablehlo.return %1, %2 : tensor<2xf32>, tensor<2xf32>
  } : (tensor<2x3xf32>, tensor<2xf32>) -> (tensor<2x3xf32>, tensor<2xf32>)
  return %0#0, %0#1 : tensor<2x3xf32>, tensor<2xf32>
}
""")

program("complex", """
func.func @main(%a: tensor<2xcomplex<f32>>, %b: tensor<2xcomplex<f32>>) -> (tensor<2xcomplex<f32>>, tensor<2xcomplex<f32>>) {
  %0 = stablehlo.atan2 %a, %b : tensor<2xcomplex<f32>>
  %1 = stablehlo.clamp %a, %b, %a : tensor<2xcomplex<f32>>
  return %0, %1 : tensor<2xcomplex<f32>>, tensor<2xcomplex<f32>>
}
""")

program("wide", """
func.func @main(%a: tensor<4xbf16>, %i: tensor<2x1xi32>, %u: tensor<2xbf16>, %p: tensor<i1>, %lo: tensor<f32>, %x: tensor<3xf32>) -> (tensor<4xf32>, tensor<3xf32>, tensor<3xf32>, tensor<4xbf16>) {
  %0 = "stablehlo.scatter"(%a, %i, %u) ({
  ^bb0(%s: tensor<f32>, %t: tensor<f32>):
    %r = stablehlo.add %s, %t : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) {scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>} : (tensor<4xbf16>, tensor<2x1xi32>, tensor<2xbf16>) -> tensor<4xf32>
  %1 = stablehlo.select %p, %x, %x : tensor<i1>, tensor<3xf32>
  %2 = stablehlo.clamp %lo, %x, %x : (tensor<f32>, tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  %3 = "stablehlo.sort"(%a) ({
  ^bb0(%s: tensor<bf16>, %t: tensor<bf16>):
    %r = stablehlo.compare LT, %s, %t, TOTALORDER : (tensor<bf16>, tensor<bf16>) -> tensor<i1>
    stablehlo.return %r : tensor<i1>
  }) {dimension = -1 : i64, is_stable = true} : (tensor<4xbf16>) -> tensor<4xbf16>
  return %0, %1, %2, %3 : tensor<4xf32>, tensor<3xf32>, tensor<3xf32>, tensor<4xbf16>
}
""")

# Is Q R the matrix again, and Q' Q the identity?  Two matrices, the second without a reflection to make.
program("qr", """
func.func @main(%a: tensor<2x3x2xf32>) -> (tensor<i1>, tensor<i1>) {
  %0:2 = stablehlo.custom_call @Qr(%a) : (tensor<2x3x2xf32>) -> (tensor<2x3x2xf32>, tensor<2x2xf32>)
  %q = stablehlo.custom_call @ProductOfElementaryHouseholderReflectors(%0#0, %0#1) : (tensor<2x3x2xf32>, tensor<2x2xf32>) -> tensor<2x3x2xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<2x2x2xf32>
  %one = stablehlo.constant dense<1.0> : tensor<2x2x2xf32>
  %i = stablehlo.iota dim = 1 : tensor<2x2x2xi32>
  %j = stablehlo.iota dim = 2 : tensor<2x2x2xi32>
  %upper = stablehlo.compare LE, %i, %j : (tensor<2x2x2xi32>, tensor<2x2x2xi32>) -> tensor<2x2x2xi1>
  %diagonal = stablehlo.compare EQ, %i, %j : (tensor<2x2x2xi32>, tensor<2x2x2xi32>) -> tensor<2x2x2xi1>
  %top = stablehlo.slice %0#0 [0:2, 0:2, 0:2] : (tensor<2x3x2xf32>) -> tensor<2x2x2xf32>
  %r = stablehlo.select %upper, %top, %zero : tensor<2x2x2xi1>, tensor<2x2x2xf32>
  %unit = stablehlo.select %diagonal, %one, %zero : tensor<2x2x2xi1>, tensor<2x2x2xf32>
  %qr = stablehlo.dot_general %q, %r, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<2x3x2xf32>, tensor<2x2x2xf32>) -> tensor<2x3x2xf32>
  %qq = stablehlo.dot_general %q, %q, batching_dims = [0] x [0], contracting_dims = [1] x [1] : (tensor<2x3x2xf32>, tensor<2x3x2xf32>) -> tensor<2x2x2xf32>
  %d = stablehlo.subtract %qr, %a : tensor<2x3x2xf32>
  %e = stablehlo.subtract %qq, %unit : tensor<2x2x2xf32>
  %dd = stablehlo.abs %d : tensor<2x3x2xf32>
  %ee = stablehlo.abs %e : tensor<2x2x2xf32>
  %small = stablehlo.constant dense<1.0e-5> : tensor<f32>
  %most = stablehlo.constant dense<0.0> : tensor<f32>
  %dm = stablehlo.reduce(%dd init: %most) applies stablehlo.maximum across dimensions = [0, 1, 2] : (tensor<2x3x2xf32>, tensor<f32>) -> tensor<f32>
  %em = stablehlo.reduce(%ee init: %most) applies stablehlo.maximum across dimensions = [0, 1, 2] : (tensor<2x2x2xf32>, tensor<f32>) -> tensor<f32>
  %x = stablehlo.compare LT, %dm, %small : (tensor<f32>, tensor<f32>) -> tensor<i1>
  %y = stablehlo.compare LT, %em, %small : (tensor<f32>, tensor<f32>) -> tensor<i1>
  return %x, %y : tensor<i1>, tensor<i1>
}
""")

program("sharding_rules", """
module @sharding_rules attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func @main(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}, %b: tensor<16x4xf32>) -> (tensor<8x4xf32>, tensor<4x32xf32>, tensor<8x16xf32>) {
  %0 = stablehlo.custom_call @CustomSPMDPartitioning(%a, %b) {api_version = 2 : i32, backend_config = "140057610585808", sdy.sharding_rule = #sdy.op_sharding_rule<([i, j], [j, k])->([i, k]) {i=8, j=16, k=4} reduction={j} permutation={k} blocked_propagation={k}, custom>} : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  %1 = stablehlo.custom_call @fold(%a) {sdy.sharding_rule = #sdy.op_sharding_rule<([ij, k])->([i, jk]) {i=4, j=2, k=16} need_replication={i}, custom>} : (tensor<8x16xf32>) -> tensor<4x32xf32>
  %2 = stablehlo.custom_call @InspectSharding(%a) {api_version = 1 : i32, backend_config = "0123456789abcdef", has_side_effect = true} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %0, %1, %2 : tensor<8x4xf32>, tensor<4x32xf32>, tensor<8x16xf32>
}
}
""")

# Futures, as JAX 0.10 has them: what is started is done at once; its region may take operands, or see what is around it.
program("futures", """
module @futures attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
func.func private @later(%f: !stablehlo.future<tensor<8xf32>>) -> tensor<8xf32> {
  %0 = "stablehlo.async_done"(%f) : (!stablehlo.future<tensor<8xf32>>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
func.func @main(%a: tensor<2xf32>, %b: tensor<2xf32>) -> (tensor<8xf32>, tensor<2xf32>) {
  %0 = "stablehlo.async_start"(%a) ({
  ^bb0(%x: tensor<2xf32>):
    %g = "stablehlo.all_gather"(%x) {all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids} : (tensor<2xf32>) -> tensor<8xf32>
    stablehlo.return %g : tensor<8xf32>
  }) : (tensor<2xf32>) -> !stablehlo.future<tensor<8xf32>>
  %1 = "stablehlo.async_start"(%b) ({
  ^bb0(%x: tensor<2xf32>):
    %g = "stablehlo.all_reduce"(%x) ({
    ^bb1(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids} : (tensor<2xf32>) -> tensor<2xf32>
    stablehlo.return %g : tensor<2xf32>
  }) : (tensor<2xf32>) -> !stablehlo.future<tensor<2xf32>>
  %2 = func.call @later(%0) : (!stablehlo.future<tensor<8xf32>>) -> tensor<8xf32>
  %3 = "stablehlo.async_done"(%1) : (!stablehlo.future<tensor<2xf32>>) -> tensor<2xf32>
  return %2, %3 : tensor<8xf32>, tensor<2xf32>
}
}
""", "1.20.0")

# Groups along axes of a mesh: two axes in the other order, a part of one, a mesh whose devices are in an order of their own, one by name.
program("mesh_groups", """
module @mesh_groups attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
sdy.mesh @named = <["u"=4, "v"=2]>
func.func @main(%a: tensor<4xf32>) -> (tensor<16xf32>, tensor<8xf32>, tensor<8xf32>, tensor<16xf32>) {
  %0 = "stablehlo.all_gather"(%a) {all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = #stablehlo.mesh<axes=[<name = "x", size = 2>, <name = "y", size = 2>, <name = "z", size = 2>]>, axes = [#stablehlo.axis_ref<name = "z">, #stablehlo.axis_ref<name = "x">]>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids} : (tensor<4xf32>) -> tensor<16xf32>
  %1 = "stablehlo.all_gather"(%a) {all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = #stablehlo.mesh<axes=[<name = "x", size = 8>]>, axes = [#stablehlo.axis_ref<name = "x", sub_axis_info = (2)2>]>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids} : (tensor<4xf32>) -> tensor<8xf32>
  %2 = "stablehlo.all_gather"(%a) {all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = #stablehlo.mesh<axes=[<name = "x", size = 4>, <name = "y", size = 2>], device_ids = dense<[7, 6, 5, 4, 3, 2, 1, 0]> : tensor<8xi64>>, axes = [#stablehlo.axis_ref<name = "y">]>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids} : (tensor<4xf32>) -> tensor<8xf32>
  %3 = "stablehlo.all_gather"(%a) {all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @named, axes = [#stablehlo.axis_ref<name = "u">]>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids} : (tensor<4xf32>) -> tensor<16xf32>
  return %0, %1, %2, %3 : tensor<16xf32>, tensor<8xf32>, tensor<8xf32>, tensor<16xf32>
}
}
""", "1.20.0")

# Collectives with a root: the first of the group, or one that the program computes.
program("roots", """
module @roots attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
func.func @main(%a: tensor<3xf32>, %c: tensor<2xcomplex<f32>>, %r: tensor<2xi32>, %s: tensor<1xi32>) -> (tensor<3xf32>, tensor<3xf32>, tensor<2xcomplex<f32>>, tensor<3xf32>, tensor<3xf32>) {
  %0 = "stablehlo.collective_broadcast"(%a) {replica_groups = dense<[[2, 0], [1, 3]]> : tensor<2x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>} : (tensor<3xf32>) -> tensor<3xf32>
  %1:2 = "stablehlo.collective_broadcast"(%a, %c, %r) {replica_groups = dense<[[2, 0], [1, 3]]> : tensor<2x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, has_dynamic_root} : (tensor<3xf32>, tensor<2xcomplex<f32>>, tensor<2xi32>) -> (tensor<3xf32>, tensor<2xcomplex<f32>>)
  %2 = "stablehlo.collective_reduce"(%a) ({
  ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %m = stablehlo.maximum %p, %q : tensor<f32>
    stablehlo.return %m : tensor<f32>
  }) {replica_groups = dense<[[2, 0], [1, 3]]> : tensor<2x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids} : (tensor<3xf32>) -> tensor<3xf32>
  %3 = "stablehlo.collective_reduce"(%a, %s) ({
  ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %m = stablehlo.add %p, %q : tensor<f32>
    stablehlo.return %m : tensor<f32>
  }) {replica_groups = dense<[[2, 0], [1, 3]]> : tensor<2x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids, has_dynamic_root} : (tensor<3xf32>, tensor<1xi32>) -> tensor<3xf32>
  return %0, %1#0, %1#1, %2, %3 : tensor<3xf32>, tensor<3xf32>, tensor<2xcomplex<f32>>, tensor<3xf32>, tensor<3xf32>
}
}
""", "1.20.0")

# Rows that data name: of integers of several types, in groups; and over replicas, of which there is one.
program("ragged", """
module @ragged attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
func.func @main(%x: tensor<6x2xbf16>, %y: tensor<9x2xbf16>, %i: tensor<4xi32>, %s: tensor<4xi8>, %o: tensor<4xui16>, %r: tensor<4xi64>) -> (tensor<9x2xbf16>, tensor<9x2xbf16>) {
  %0 = stablehlo.custom_call @ragged_all_to_all(%x, %y, %i, %s, %o, %r) {api_version = 4 : i32, backend_config = {replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>, channel_id = 1 : i64}} : (tensor<6x2xbf16>, tensor<9x2xbf16>, tensor<4xi32>, tensor<4xi8>, tensor<4xui16>, tensor<4xi64>) -> tensor<9x2xbf16>
  %1 = stablehlo.custom_call @ragged_all_to_all(%x, %y, %i, %s, %o, %r) {api_version = 4 : i32, backend_config = {replica_groups = dense<[[0]]> : tensor<1x1xi64>}} : (tensor<6x2xbf16>, tensor<9x2xbf16>, tensor<4xi32>, tensor<4xi8>, tensor<4xui16>, tensor<4xi64>) -> tensor<9x2xbf16>
  return %0, %1 : tensor<9x2xbf16>, tensor<9x2xbf16>
}
}
""")

# Without groups, and with lists of two lengths.
program("ragged_no_groups", """
module @ragged attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
func.func @main(%x: tensor<6x2xf32>, %i: tensor<4xi32>) -> tensor<6x2xf32> {
  %0 = stablehlo.custom_call @ragged_all_to_all(%x, %x, %i, %i, %i, %i) {api_version = 4 : i32, backend_config = {channel_id = 1 : i64}} : (tensor<6x2xf32>, tensor<6x2xf32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>) -> tensor<6x2xf32>
  return %0 : tensor<6x2xf32>
}
}
""")
program("ragged_lists", """
module @ragged attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
func.func @main(%x: tensor<6x2xf32>, %i: tensor<4xi32>, %j: tensor<2xi32>) -> tensor<6x2xf32> {
  %0 = stablehlo.custom_call @ragged_all_to_all(%x, %x, %i, %i, %i, %j) {api_version = 4 : i32, backend_config = {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, channel_id = 1 : i64}} : (tensor<6x2xf32>, tensor<6x2xf32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<2xi32>) -> tensor<6x2xf32>
  return %0 : tensor<6x2xf32>
}
}
""")

# Collectives in two halves, as JAX 0.12 has them, and a call of the second version.
program("halves", """
module @halves attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
func.func private @sum(%p: tensor<f32>, %q: tensor<f32>) -> tensor<f32> {
  %s = stablehlo.add %p, %q : tensor<f32>
  return %s : tensor<f32>
}
func.func @main(%a: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<8x4xf32>, tensor<2x4xf32>, tensor<8x2xf32>, tensor<4x4xf32>, tensor<4xf32>) {
  %0 = stablehlo.custom_call @"all-reduce-start"(%a) {backend_config = "", called_computations = [@sum], mhlo.frontend_attributes = {async_collective_config = "{\\22replica_groups\\22: [[0, 2], [1, 3]], \\22use_global_device_ids\\22: true, \\22channel_id\\22: 1}"}} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = stablehlo.custom_call @"all-gather-start"(%a) {backend_config = "", mhlo.frontend_attributes = {async_collective_config = "{\\22all_gather_dimension\\22: 0, \\22replica_groups\\22: [[0, 2], [1, 3]], \\22use_global_device_ids\\22: true, \\22channel_id\\22: 1}"}} : (tensor<4x4xf32>) -> tensor<8x4xf32>
  %2 = stablehlo.custom_call @"reduce-scatter-start"(%a) {backend_config = "", called_computations = [@sum], mhlo.frontend_attributes = {async_collective_config = "{\\22scatter_dimension\\22: 0, \\22replica_groups\\22: [[0, 2], [1, 3]], \\22tiled\\22: true, \\22use_global_device_ids\\22: true, \\22channel_id\\22: 1}"}} : (tensor<4x4xf32>) -> tensor<2x4xf32>
  %3 = stablehlo.custom_call @"all-to-all-start"(%a) {backend_config = "", mhlo.frontend_attributes = {async_collective_config = "{\\22split_dimension\\22: 1, \\22concat_dimension\\22: 0, \\22split_count\\22: 2, \\22replica_groups\\22: [[0, 2], [1, 3]], \\22channel_id\\22: 1}"}} : (tensor<4x4xf32>) -> tensor<8x2xf32>
  %4 = stablehlo.custom_call @"collective-permute-start"(%a) {backend_config = "", mhlo.frontend_attributes = {async_collective_config = "{\\22permutation\\22: [[0, 2], [2, 0], [1, 3], [3, 1]], \\22channel_id\\22: 1}"}} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %5 = stablehlo.custom_call @"all-reduce-done"(%0) {backend_config = ""} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %6 = stablehlo.custom_call @"all-gather-done"(%1) {backend_config = ""} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %7 = stablehlo.custom_call @"reduce-scatter-done"(%2) {backend_config = ""} : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %8 = stablehlo.custom_call @"all-to-all-done"(%3) {backend_config = ""} : (tensor<8x2xf32>) -> tensor<8x2xf32>
  %9 = stablehlo.custom_call @"collective-permute-done"(%4) {backend_config = ""} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %10 = stablehlo.custom_call @theirs(%a) {backend_config = "", api_version = 2 : i32} : (tensor<4x4xf32>) -> tensor<4xf32>
  return %5, %6, %7, %8, %9, %10 : tensor<4x4xf32>, tensor<8x4xf32>, tensor<2x4xf32>, tensor<8x2xf32>, tensor<4x4xf32>, tensor<4xf32>
}
}
""", "1.20.0")

# What cannot be: a description that is none, axes that overlap, a result in tiles.
program("halves_unknown", """
module @halves_unknown attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
func.func @main(%a: tensor<4xf32>) -> tensor<8xf32> {
  %0 = stablehlo.custom_call @"all-gather-start"(%a) {backend_config = "", mhlo.frontend_attributes = {async_collective_config = "{\\22all_gather_dimension\\22: 0, \\22colour\\22: 3}"}} : (tensor<4xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
}
""", "1.20.0")

program("mesh_groups_overlap", """
module @mesh_groups_overlap attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
func.func @main(%a: tensor<4xf32>) -> tensor<16xf32> {
  %0 = "stablehlo.all_gather"(%a) {all_gather_dim = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = #stablehlo.mesh<axes=[<name = "x", size = 8>]>, axes = [#stablehlo.axis_ref<name = "x", sub_axis_info = (2)2>, #stablehlo.axis_ref<name = "x", sub_axis_info = (2)2>]>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids} : (tensor<4xf32>) -> tensor<16xf32>
  return %0 : tensor<16xf32>
}
}
""", "1.20.0")

program("tiles", """
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "stablehlo.custom_call"(%a) {call_target_name = "theirs", backend_config = "", api_version = 2 : i32, operand_layouts = [dense<0> : tensor<1xindex>], result_layouts = [dense<0> : tensor<1xindex>], result_tilings = [[dense<[8]> : tensor<1xindex>]]} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
""", "1.20.0")


if __name__ == "__main__":
    context = mlir.make_ir_context()
    with context:
        for name in sys.argv[1:] or PROGRAMS:
            text, version = PROGRAMS[name]
            module = ir.Module.parse(text)
            code = _jax.mlir.serialize_portable_artifact(module, version, True)
            (HERE / f"{name}.mlirbc").write_bytes(code)
