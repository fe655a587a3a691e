// SPDX-License-Identifier: Apache-2.0 OR MIT
// Records events from several threads of a C++ program.

#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include <strata.h>

STRATA_EVENT(baked, "baker:baked", (text, what), (u32, oven), (u64, number));
STRATA_EVENT0(cleaned, "baker:cleaned");

namespace {

int bake(unsigned oven)
{
	const std::string what = "roll " + std::to_string(oven);
	int recorded = 0;

	for (std::uint64_t number = 0; number < 100; number++)
		recorded += STRATA_RECORD(baked, what.c_str(), oven, number);
	return recorded;
}

} // namespace

int main()
{
	std::vector<int> recorded(4);
	std::vector<std::thread> ovens;
	int sum = STRATA_RECORD0(cleaned);

	for (unsigned oven = 0; oven < recorded.size(); oven++)
		ovens.emplace_back([&recorded, oven] { recorded[oven] = bake(oven); });
	for (auto &oven : ovens)
		oven.join();
	for (int each : recorded)
		sum += each;
	strata_flush();
	std::printf("baker: %d recorded, %llu lost\n", sum, static_cast<unsigned long long>(strata_lost()));
	return 0;
}
